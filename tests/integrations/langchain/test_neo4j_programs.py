"""Chains and stores over a real Neo4j: what the plain ones give, tell and raise, and scheduled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

pytest.importorskip("langchain_neo4j")

from graph_programs import run_three_ways
from neo4j.exceptions import ClientError
from neo4j_programs import (
    FILL,
    ODD,
    WRITES,
    WRITTEN,
    CountedGraph,
    chain_over,
    graph_at,
)
from neo4j_server import BoltServer

from langchain_rag_accel import accelerate
from rag_accel import Accelerator

pytestmark = pytest.mark.neo4j

SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "direct": {"return_direct": True},
    "validated": {"validate_cypher": True},
    "as a tool": {"use_function_response": True},
    "few": {"top_k": 1, "return_intermediate_steps": False},
}


@pytest.fixture
def graph(neo4j_server: BoltServer, neo4j_driver: Any) -> Iterator[CountedGraph]:
    neo4j_driver.execute_query(FILL, names=ODD)
    with graph_at(neo4j_server, CountedGraph) as made:
        yield made


def _invoke(question: str, chain: Any, config: Any) -> Any:
    return chain.invoke({"query": question}, config)


def _ainvoke(question: str, chain: Any, config: Any) -> Any:
    return asyncio.run(chain.ainvoke({"query": question}, config))


def _batch(question: str, chain: Any, config: Any) -> Any:
    return chain.batch([{"query": question}], config)


# GraphCypherQAChain.


@pytest.mark.cross_product(keep=2)
@pytest.mark.parametrize("settings", SETTINGS)
def test_a_chain_gives_and_tells_what_the_plain_one_does(
    settings: str, graph: CountedGraph, accelerator: Accelerator
) -> None:
    make = partial(chain_over, graph, **SETTINGS[settings])
    runs = (_invoke, _ainvoke, _batch) if settings == next(iter(SETTINGS)) else (_ainvoke,)
    for question in WRITTEN:
        for run in runs:
            graph.asked.clear()
            bare, *others = run_three_ways(make, partial(run, question), accelerator)
            assert others == [bare, bare], question
            number, rest = divmod(len(graph.asked), 3)
            assert (number <= 1, rest) == (True, 0), question


# What writes is the caller's.


@pytest.mark.parametrize("question", WRITES)
def test_what_writes_has_the_plain_effect_once(
    question: str, graph: CountedGraph, accelerator: Accelerator
) -> None:
    made: list[int] = []

    def run(chain: Any, config: Any) -> Any:
        try:
            return chain.invoke({"query": question}, config)
        finally:
            (row,) = graph.query("MATCH (n:Made) RETURN count(n) AS made")
            made.append(row["made"])

    bare, *others = run_three_ways(partial(chain_over, graph), run, accelerator)
    assert others == [bare, bare]
    assert made == [made[0], 2 * made[0], 3 * made[0]]
    assert made[0] == {"make?": 1, "make apart?": 2}.get(question, 0)


async def test_equal_queries_of_sixteen_requests_all_reach_the_graph(
    graph: CountedGraph, accelerator: Accelerator
) -> None:
    fast = accelerate(chain_over(graph), accelerator=accelerator)
    await asyncio.gather(*(fast.ainvoke({"query": "make?"}) for _ in range(16)))
    assert graph.query("MATCH (n:Made) RETURN count(n) AS made") == [{"made": 16}]
    graph.asked.clear()
    await asyncio.gather(*(fast.ainvoke({"query": "names?"}) for _ in range(16)))
    assert len(graph.asked) == 16


# Neo4jGraph.


def test_names_and_parameters_reach_a_graph_as_they_are(
    graph: CountedGraph, accelerator: Accelerator
) -> None:
    fast = accelerate(graph, accelerator=accelerator)
    assert isinstance(fast, CountedGraph)
    for name in [*ODD, "", "Nobody"]:
        asked = ("MATCH (p:Person {name: $name}) RETURN p", {"name": name})
        assert fast.query(*asked) == graph.query(*asked) == [{"p": {"name": name}}] * (name in ODD)
    session = {"default_access_mode": "READ"}
    found = fast.query("RETURN $x AS x", params={"x": [1, None]}, session_params=session)
    assert found == [{"x": [1, None]}]
    with pytest.raises(ClientError, match="read access mode"):
        fast.query("CREATE (:Made)", session_params=session)


def test_a_graph_closed_through_its_twin_is_closed(
    neo4j_server: BoltServer, neo4j_driver: Any, accelerator: Accelerator
) -> None:
    graph = graph_at(neo4j_server, refresh_schema=False)
    fast = accelerate(graph, accelerator=accelerator)
    fast.refresh_schema()
    assert fast.get_schema == graph.get_schema != ""
    del fast
    assert graph.query("RETURN 1 AS one") == [{"one": 1}]
    accelerate(graph, accelerator=accelerator).close()
    with pytest.raises(RuntimeError, match="connection has been closed"):
        graph.query("RETURN 1")
