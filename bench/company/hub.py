"""Quick questions to a graph in Neo4j, beside users who ask for an entity of very many edges."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bench.graph.bolt_waves import LABEL, written
from bench.measure import Pairs, alternate
from bench.neo4j_process import BoltServer
from bench.paired import in_ms
from rag_accel.accelerator import Accelerator
from rag_accel.engines import BoltGraph
from rag_accel.graph import END, START, RAGraph
from rag_accel.sample.source_triples import Triple

HUB_EDGES, HUB_USERS, QUICK_USERS, FAN_OUT, TIMEOUT_S = 100_000, 2, 4, 32, 1.0
_ENTITIES, _EDGES = 200, 5
_HUB = "the hub"
_PLAIN = f"""MATCH (a:{LABEL} {{id: $name}})-[r]->(b:{LABEL})
RETURN DISTINCT type(r) AS relation, b.id AS other
ORDER BY relation, other LIMIT $limit"""

#: from the name of an entity to the texts of the paths of one hop from it
Ask = Callable[[str], set[str]]


@dataclass(frozen=True, slots=True)
class HubTimes:
    """What quick questions take through us and by the plain driver.

    Args:
        median: beside users at the hub, ours in medians of the driver's.
        alone_ms: of one user's questions, with nobody else.
    """

    median: float
    alone_ms: Pairs[float]


def hub_times(server: BoltServer, quick: bool) -> HubTimes:
    """Return the times of quick questions through us and by the plain driver.

    Four users ask for entities of five edges, one question after the other, while two ask for a hub
    of 100,000 edges again and again; each query ends after a second at the latest. The plain
    driver is called from as many threads, with one query for each question, over the same data and
    in turns with us. Both find the same. Then one user asks, with nobody else.

    Args:
        server: a Neo4j, where nodes with the label of the benchmark are written and deleted.
        quick: fewer questions.
    """
    rounds, questions = (2, 20) if quick else (5, 60)
    ours, plain = list[float](), list[float]()
    with (
        server.driver(notifications_min_severity="OFF") as driver,
        written(driver, _triples()),
        _accelerated(driver) as ask,
    ):
        ways = ((ask, ours), (_plainly(driver), plain))
        for way, _ in ways:  # connections, plans of queries, the hub's degree
            _beside_hub(way, 5)
        for _ in range(rounds):
            for way, times in ways:
                times += _beside_hub(way, questions)
        directly = _plainly(driver)
        alone = alternate(
            lambda turn: _ask_quickly(directly, turn, 1)[0],
            lambda turn: _ask_quickly(ask, turn, 1)[0],
            rounds * questions,
            warm_up=5,
        )
    return HubTimes(statistics.median(ours) / statistics.median(plain), alone.map(in_ms))


def _triples() -> list[Triple]:
    hub = [(_HUB, "has", f"leaf {leaf}") for leaf in range(HUB_EDGES)]
    small = [
        (_name(entity), "knows", f"{_name(entity)}.{edge}")
        for entity in range(_ENTITIES)
        for edge in range(_EDGES)
    ]
    return [*hub, *small]


def _name(entity: int) -> str:
    return f"entity {entity}"


@contextmanager
def _accelerated(driver: Any) -> Iterator[Ask]:
    stage = RAGraph(("input", "entities")).add_graph_retrieval(
        "facts",
        keywords="entities",
        seeds=1,
        hops=1,
        top_k=FAN_OUT,
        direction="out",
        fan_out=FAN_OUT,
    )
    stage.add_edge(START, "facts").add_edge("facts", END)
    graph = BoltGraph(driver, label=LABEL, timeout_s=TIMEOUT_S)
    with Accelerator(graph=graph, embedder=_embed, single_flight=False) as accelerator:

        def ask(name: str) -> set[str]:
            hits = accelerator.run(stage, input=name, entities=[name])
            return {hit.document.text for hit in hits}

        yield ask


def _embed(texts: Sequence[str]) -> list[list[float]]:
    """Return vectors that cost nothing: it is the graph that is measured."""
    return [[1.0, float(len(text))] for text in texts]


def _plainly(driver: Any) -> Ask:
    from neo4j import Query

    query = Query(_PLAIN, timeout=TIMEOUT_S)

    def ask(name: str) -> set[str]:
        with driver.session(default_access_mode="READ") as session:
            found = session.run(query, {"name": name, "limit": FAN_OUT})
            return {f"{name} -> {relation} -> {other}" for relation, other in found}

    return ask


def _beside_hub(ask: Ask, questions: int) -> list[float]:
    """Return the seconds of each quick question while others ask for the hub."""
    ended = threading.Event()
    with ThreadPoolExecutor(HUB_USERS + QUICK_USERS) as users:
        hubs = [users.submit(_ask_for_hub, ask, ended) for _ in range(HUB_USERS)]
        try:
            quick = users.map(lambda user: _ask_quickly(ask, user, questions), range(QUICK_USERS))
            times = [seconds for own in quick for seconds in own]
        finally:
            ended.set()
        for hub in hubs:
            hub.result()
    return times


def _ask_quickly(ask: Ask, user: int, questions: int) -> list[float]:
    times: list[float] = []
    for question in range(questions):
        name = _name((user + question * QUICK_USERS) % _ENTITIES)
        began = time.perf_counter()
        found = _in_time(ask, name)
        times.append(time.perf_counter() - began)
        expected = {f"{name} -> knows -> {name}.{edge}" for edge in range(_EDGES)}
        assert found is None or found == expected, found
    return times


def _ask_for_hub(ask: Ask, ended: threading.Event) -> None:
    while not ended.is_set():
        found = _in_time(ask, _HUB)
        assert found is None or len(found) == FAN_OUT, found


def _in_time(ask: Ask, name: str) -> set[str] | None:
    """Return the paths from an entity; ``None`` if the server ended the query at its time limit."""
    from neo4j.exceptions import Neo4jError

    try:
        return ask(name)
    except Neo4jError as error:
        if "TransactionTimedOut" not in (error.code or ""):
            raise
        return None
