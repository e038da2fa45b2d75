"""The engine over graphs in a database: who shares a query, and what meets whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from bolt_fakes import FakeDriver
from neo4j.exceptions import AuthError, ClientError, ServiceUnavailable

from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.engine_api import (
    Engine,
    EngineOutput,
    EngineRequest,
    ExpandBatch,
    LinkQuery,
    PrimitiveKind,
    StepBudget,
    WorkId,
)
from rag_accel.engines import BoltGraph, KnowledgeEngine
from rag_accel.engines.knowledge.paths import Paths
from rag_accel.testing import EngineContract

TRIPLES = [("a", "r", "b"), ("b", "r", "c"), ("c", "s", "d")]


class TestBoltEngine(EngineContract):
    """The engine keeps the contract of engines."""

    def make_engine(self) -> Engine:
        return BoltGraph(FakeDriver(TRIPLES)).as_engine()

    def make_request(self, number: int) -> EngineRequest:
        payload = LinkQuery(1, names=("abcd"[number % 4],))
        return EngineRequest(WorkId(f"w{number}"), "r", PrimitiveKind.SEARCHING, payload)


def stepped(engine: Engine, payloads: Sequence[Any], *namespaces: str) -> list[EngineOutput]:
    """Hand work in, step until all of it has ended, and return outputs in the order of the work."""
    link = isinstance(payloads[0], LinkQuery)
    kind = PrimitiveKind.SEARCHING if link else PrimitiveKind.EXPANDING
    names = namespaces or ("",) * len(payloads)
    engine.submit(
        [
            EngineRequest(WorkId(str(place)), f"r{place}", kind, payload, namespace)
            for place, (payload, namespace) in enumerate(zip(payloads, names, strict=True))
        ]
    )
    outputs: list[EngineOutput] = []
    while len(outputs) < len(payloads):
        outputs += engine.step(StepBudget())
    return sorted(outputs, key=lambda output: int(output.id))


def linked(engine: Engine, *names: str) -> list[Paths]:
    """Return the paths of no hops from entities, a request each."""
    outputs = stepped(engine, [LinkQuery(1, names=(name,)) for name in names])
    return [output.value for output in outputs]


def test_tenants_of_one_graph_share_no_query() -> None:
    driver = FakeDriver(TRIPLES)
    engine = BoltGraph(driver).as_engine()
    stepped(engine, [LinkQuery(1, names=("a",)), LinkQuery(1, names=("b",))], "ours", "theirs")
    assert sorted(one.parameters["names"] for one in driver.sent) == [["a"], ["b"]]


def test_each_tenant_reads_with_its_own_access() -> None:
    driver = FakeDriver(TRIPLES)
    graphs = {name: BoltGraph(driver, database=name) for name in ("ours", "theirs")}
    queries = [LinkQuery(1, names=(name,)) for name in "aab"]
    stepped(KnowledgeEngine(graphs), queries, "ours", "theirs", "ours")
    sent = {one.settings["database"]: one.parameters["names"] for one in driver.sent}
    assert sent == {"ours": ["a", "b"], "theirs": ["a"]}


@pytest.mark.parametrize("error", [AuthError("refused"), ServiceUnavailable("gone")])
def test_an_error_that_meets_every_request_is_asked_for_once(error: Exception) -> None:
    driver = FakeDriver(TRIPLES)
    engine = BoltGraph(driver).as_engine()
    paths = linked(engine, *"abcd")
    driver.failures = [error] * 2
    outputs = stepped(engine, [ExpandBatch(one) for one in paths])
    assert [output.error for output in outputs] == [error] * 4
    assert len(driver.sent) <= 3


def test_a_request_that_the_server_refuses_fails_alone() -> None:
    driver = FakeDriver(TRIPLES)
    engine = BoltGraph(driver).as_engine()
    paths = linked(engine, *"abc")
    refused = ClientError("too large")
    driver.refused = {"a": refused}
    outputs = stepped(engine, [ExpandBatch(one) for one in paths])
    assert [output.kind for output in outputs] == ["error", "final", "final"]
    assert outputs[0].error is refused


def test_a_workflow_finds_paths_in_a_database() -> None:
    graph = RAGraph().add_graph_retrieval("facts", keywords="input", hops=2, top_k=9)
    graph.add_edge(START, "facts").add_edge("facts", END)

    def embed(texts: list[str]) -> list[list[float]]:
        return [[1.0, float(len(text))] for text in texts]

    driver = FakeDriver(TRIPLES)
    with Accelerator(graph=BoltGraph(driver), embedder=embed) as accelerator:
        found = accelerator.run(graph, input="a, nowhere")
    assert {hit.document.text for hit in found} == {"a -> r -> b", "a -> r -> b -> r -> c"}
    assert len(driver.sent) == 3
