"""Waves of requests to a graph in Neo4j: what they find, and how many queries the driver sends."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.graph.property_graph import entity_names
from bench.neo4j_process import BoltServer, running_server, started, stopped
from rag_accel.accelerator import Accelerator
from rag_accel.engines import BoltGraph, KnowledgeEngine, MemoryGraph
from rag_accel.graph import END, START, RAGraph
from rag_accel.sample.source_triples import Triple

HOPS, REQUESTS, FAN_OUT, MAX_PATHS = 2, 16, 6, 16
#: the label of what is written here, and nowhere else
LABEL = "BenchEntity"
_ROWS = 5_000


class CountingDriver:
    """A driver that counts the queries sent, from any thread; the rest is the driver's own."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self._lock = threading.Lock()
        self.sent = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.driver, name)

    def close(self) -> None:
        """Close the driver."""
        self.driver.close()

    def count_query(self) -> None:
        """Count a query that is sent now."""
        with self._lock:
            self.sent += 1

    def execute_query(self, *args: Any, **settings: Any) -> Any:
        """Execute a query, which is counted."""
        self.count_query()
        return self.driver.execute_query(*args, **settings)

    @contextmanager
    def session(self, **settings: Any) -> Iterator[Any]:
        """Give a session, whose queries are counted."""
        with self.driver.session(**settings) as session:
            yield _CountingSession(session, self)


class _CountingSession:
    def __init__(self, session: Any, counts: CountingDriver) -> None:
        self._session, self._counts = session, counts

    def run(self, query: Any, parameters: Any = None) -> Any:
        self._counts.count_query()
        return self._session.run(query, parameters)


@dataclass(frozen=True, slots=True)
class WaveOfRequests:
    """What requests made at once found, in order, and how many queries were sent for them."""

    paths: tuple[tuple[str, ...], ...]
    sent: int


@contextmanager
def bolt_server() -> Iterator[BoltServer]:
    """Give the server that runs, or one that is started and stopped again."""
    if server := running_server():
        yield server
        return
    home = Path(os.environ["NEO4J_HOME"]).resolve()
    with tempfile.TemporaryDirectory(prefix="bench-neo4j-", ignore_cleanup_errors=True) as folder:
        process, server = started(home, Path(folder) / "neo4j")
        try:
            yield server
        finally:
            stopped(process)


@contextmanager
def written(driver: Any, triples: Sequence[Triple]) -> Iterator[None]:
    """Have the triples in the database meanwhile, with an index on the names of their entities."""
    constraint = f"{LABEL}_names"
    driver.execute_query(f"CREATE CONSTRAINT {constraint} FOR (n:{LABEL}) REQUIRE n.id IS UNIQUE")
    try:
        _write(driver, triples)
        yield
    finally:
        driver.execute_query(f"MATCH (n:{LABEL}) DETACH DELETE n")
        driver.execute_query(f"DROP CONSTRAINT {constraint}")


def _write(driver: Any, triples: Sequence[Triple]) -> None:
    driver.execute_query(
        f"UNWIND $names AS name CREATE (:{LABEL} {{id: name}})", names=entity_names(triples)
    )
    by_relation = dict[str, list[list[str]]]()
    for head, relation, tail in triples:
        by_relation.setdefault(relation, []).append([head, tail])
    for relation, rows in by_relation.items():
        quoted = relation.replace("`", "``")
        for start in range(0, len(rows), _ROWS):
            driver.execute_query(
                f"UNWIND $rows AS row MATCH (a:{LABEL} {{id: row[0]}}), (b:{LABEL} {{id: row[1]}}) "
                f"CREATE (a)-[:`{quoted}`]->(b)",
                rows=rows[start : start + _ROWS],
            )


def ask_wave(accelerator: Accelerator, seeds: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Return the texts of the paths from each entity, sorted; all requests are made at once.

    Which paths are found is the graph's to say; which of two that are as near comes first is not.
    """
    graph = _paths_from_names()

    async def ask() -> list[Any]:
        return await asyncio.gather(
            *(accelerator.arun(graph, input=seed, entities=[seed]) for seed in seeds)
        )

    return tuple(tuple(sorted(hit.document.text for hit in hits)) for hits in asyncio.run(ask()))


def _paths_from_names() -> RAGraph:
    graph = RAGraph(("input", "entities")).add_graph_retrieval(
        "facts",
        keywords="entities",
        seeds=1,
        hops=HOPS,
        top_k=MAX_PATHS,
        fan_out=FAN_OUT,
        max_paths=MAX_PATHS,
    )
    return graph.add_edge(START, "facts").add_edge("facts", END)


def bolt_waves(driver: Any, embedder: Any, waves: Sequence[Sequence[str]]) -> list[WaveOfRequests]:
    """Return what each wave finds over Bolt, and what it sends."""
    counting, found = CountingDriver(driver), list[WaveOfRequests]()
    with (
        closing(BoltGraph(counting, label=LABEL)) as graph,
        Accelerator(graph=graph.as_engine(), embedder=embedder, single_flight=False) as accelerator,
    ):
        for seeds in waves:
            before = counting.sent
            paths = ask_wave(accelerator, seeds)
            found.append(WaveOfRequests(paths, counting.sent - before))
    return found


def memory_waves(
    graph: MemoryGraph, embedder: Any, waves: Sequence[Sequence[str]]
) -> list[tuple[tuple[str, ...], ...]]:
    """Return what each wave finds in a graph in memory."""
    with Accelerator(
        graph=KnowledgeEngine(graph), embedder=embedder, single_flight=False
    ) as accelerator:
        return [ask_wave(accelerator, seeds) for seeds in waves]
