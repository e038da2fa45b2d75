"""Programs over the sample graph in a Neo4j, by LlamaIndex' own store, plain and ours.

Both arms ask one store object, so one driver with one pool of connections, whose queries are
counted. The store is filled and asked as LlamaIndex does it; nothing here writes Cypher for it.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bench.graph.bolt_waves import CountingDriver
from bench.graph.programs import OURS, PLAIN, Asked, Wave, asked_programs, program_rows
from bench.graph.property_graph import entity_names, fill
from bench.measure import Pairs
from bench.neo4j_process import BoltServer
from bench.results import Row, median_row
from rag_accel.sample.source_triples import Triple

#: of every node that the store of LlamaIndex writes
NODE_LABEL = "__Node__"
_INDEX_S = 60


def reason_without_store(driver: Any) -> str | None:
    """Return why LlamaIndex' store cannot be filled here; None if it can."""
    if importlib.util.find_spec("llama_index.graph_stores.neo4j") is None:
        return "the package llama-index-graph-stores-neo4j is not installed"
    if driver.execute_query(f"MATCH (n:{NODE_LABEL}) RETURN n LIMIT 1").records:
        return "the database of NEO4J_URI holds a property graph already"
    return None


@contextmanager
def written_store(server: BoltServer, triples: Sequence[Triple]) -> Iterator[Any]:
    """Give LlamaIndex' store of a server that holds the triples meanwhile.

    Its nodes are deleted afterwards, and the indexes that it has made.
    """
    from llama_index.graph_stores.neo4j import Neo4jPropertyGraphStore

    with server.driver() as driver:
        before = _schema(driver)
        store = Neo4jPropertyGraphStore(
            server.user, server.password, server.uri, refresh_schema=False
        )
        try:
            fill(store, triples)
            driver.execute_query(f"CALL db.awaitIndexes({_INDEX_S})")
            yield store
        finally:
            store.close()
            asyncio.run(store._async_driver.close())  # nobody uses or closes it upstream
            _empty(driver, entity_names(triples), before)


def _empty(driver: Any, names: Sequence[str], kept: Sequence[tuple[str, str]]) -> None:
    """Delete the nodes of these names, and what the schema did not have before."""
    driver.execute_query(
        f"MATCH (n:{NODE_LABEL}) WHERE n.id IN $names DETACH DELETE n", names=names
    )
    for kind, name in _schema(driver):
        if (kind, name) not in kept:
            quoted = name.replace("`", "``")
            driver.execute_query(f"DROP {kind} `{quoted}` IF EXISTS")


def _schema(driver: Any) -> list[tuple[str, str]]:
    """Return the kind and name of each constraint and index, constraints first: they own some."""
    return [
        (kind, record["name"])
        for kind, plural in (("CONSTRAINT", "CONSTRAINTS"), ("INDEX", "INDEXES"))
        for record in driver.execute_query(f"SHOW {plural} YIELD name").records
    ]


@dataclass(frozen=True, slots=True)
class OverBolt:
    """What programs over a store on a server took in both arms, and the queries they sent."""

    workload: str
    waves: Pairs[Wave]

    def rows(self) -> list[Row]:
        """Return the times of both arms, and how many queries each sent."""
        return [
            *program_rows(self.workload, self.waves),
            median_row(PLAIN, self.workload, "round_trips", [one.sent for one in self.waves.plain]),
            median_row(OURS, self.workload, "round_trips", [one.sent for one in self.waves.other]),
        ]


def asked_over_bolt(store: Any, asked: Asked) -> OverBolt:
    """Ask programs over a store on a server, and count the queries that its driver sends."""
    counting = CountingDriver(store._driver)
    store._driver = counting
    try:
        pairs = asked_programs(store, asked, lambda: counting.sent)
    finally:
        store._driver = counting.driver
    at_once = "one program" if asked.programs == 1 else f"{asked.programs} programs at once"
    by = "" if asked.vectors else " by names alone"
    return OverBolt(f"{at_once}{by}, {len(asked.triples)} triples, Neo4j", pairs)
