"""Options of stages that each request sets: one graph, compiled once, for all of them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from accel_harness import WAYS, opened
from graph_text import parse, references

from rag_accel import END, START, GraphError, Input, RAGraph
from rag_accel.engine_api import Document, GenerationInput, PrimitiveKind, RerankBatch
from rag_accel.engines import DocumentIndex, IndexSpec, RetrievalEngine
from rag_accel.graph.text import format
from rag_accel.passes.context import PassContext
from rag_accel.testing import FakeEngine, compute, vector_of

anyhow = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
TENANTS = ("ants", "bees")


def line(graph: RAGraph, *names: str) -> RAGraph:
    for source, target in zip((START, *names), (*names, END), strict=True):
        graph.add_edge(source, target)
    return graph


def searching(**options: Any) -> RAGraph:
    inputs = ["input", *(value.name for value in options.values() if isinstance(value, Input))]
    where = options.get("where")
    if isinstance(where, Mapping):
        inputs += [value.name for value in where.values() if isinstance(value, Input)]
    return line(RAGraph(inputs=inputs).add_retrieval("docs", **options), "docs")


def index() -> DocumentIndex:
    found = DocumentIndex(IndexSpec(len(vector_of("x"))))
    documents = [
        Document(f"{who}{n}", f"{who} {n}", {"who": who}) for who in TENANTS for n in range(9)
    ]
    found.add(documents, np.stack([vector_of(document.text) for document in documents]))
    return found


def ids(found: Any) -> list[str]:
    return [hit.document.id for hit in found]


@anyhow
def test_each_request_says_how_many_documents_it_wants(way: Any) -> None:
    graph = searching(top_k=Input("k"))
    with opened(embedder=FakeEngine(), index=index()) as acc:
        found = [ids(way(acc, graph, input="ants 3", k=k)) for k in (1, 4, 12)]
        fixed = [ids(way(acc, searching(top_k=k), input="ants 3")) for k in (1, 4, 12)]
    assert [len(names) for names in found] == [1, 4, 12]
    assert found == fixed


@pytest.mark.parametrize("where", [{"who": Input("tenant")}, Input("tenant")], ids=["value", "all"])
def test_tenants_share_a_graph_and_see_their_own_documents(where: Any) -> None:
    graph = searching(top_k=20, where=where)
    said = {who: who if isinstance(where, Mapping) else {"who": who} for who in TENANTS}
    found: dict[str, list[str]] = {}
    with opened(embedder=FakeEngine(), index=index()) as acc:
        threads = [
            threading.Thread(
                target=lambda who=who: found.update(
                    {who: ids(acc.run(graph, input="x", tenant=said[who]))}
                )
            )
            for who in TENANTS
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for who in TENANTS:
        assert sorted(found[who]) == [f"{who}{n}" for n in range(9)]


def test_a_filter_that_a_request_leaves_out_filters_nothing() -> None:
    graph = searching(top_k=20, where=Input("filter"))
    with opened(embedder=FakeEngine(), index=index()) as acc:
        assert len(acc.run(graph, input="x", filter=None)) == 18


def test_a_filter_of_a_request_names_a_field_that_documents_have() -> None:
    graph = searching(top_k=20, where=Input("filter"))
    with (
        opened(embedder=FakeEngine(), index=index()) as acc,
        pytest.raises(GraphError, match="known-fields: stage 'docs' filters on 'whom'"),
    ):
        acc.run(graph, input="x", filter={"whom": "ants"})


def test_a_graph_with_such_options_is_compiled_once() -> None:
    graph = searching(top_k=Input("k"))
    with opened(embedder=FakeEngine(), index=index()) as acc:
        acc.run(graph, input="x", k=1)
        plan = next(iter(graph.freeze().made.values()))
        acc.run(graph, input="x", k=2)
        assert next(iter(graph.freeze().made.values())) is plan


def test_each_request_says_the_length_of_its_answer() -> None:
    asked: list[Any] = []

    def answer(payload: Any) -> Any:
        if isinstance(payload, GenerationInput):
            asked.append(payload.max_tokens)
        return compute(payload)

    graph = RAGraph(inputs=["input", "most"])
    line(graph.add_generation("answer", "Say {input}", max_tokens=Input("most")), "answer")
    with opened(llm=FakeEngine(compute=answer)) as acc:
        for most in (5, None, 7):
            acc.run(graph, input="it", most=most)
    assert asked == [5, None, 7]


def test_a_callable_is_told_what_the_request_says() -> None:
    told: list[Any] = []

    def find(query: str, k: int, where: Mapping[str, Any] | None = None) -> list[str]:
        told.append((k, where))
        return [query] * k

    graph = searching(top_k=Input("k"), where={"who": Input("tenant"), "kind": "open"})
    with opened(index=find) as acc:
        acc.run(graph, input="x", k=2, tenant="ants")
    assert told == [(2, {"who": "ants", "kind": "open"})]


def test_a_rerank_in_slices_keeps_what_the_request_says() -> None:
    sizes: list[int] = []

    def rank(payload: Any) -> Any:
        if isinstance(payload, RerankBatch):
            sizes.append(len(payload.documents))
        return compute(payload)

    graph = RAGraph(inputs=["input", "k", "best"])
    graph.add_retrieval("docs", top_k=Input("k"))
    graph.add_rerank("few", documents="docs", top_n=Input("best"))
    line(graph, "docs", "few")
    with opened(embedder=FakeEngine(), index=index(), reranker=FakeEngine(compute=rank)) as acc:
        assert len(acc.run(graph, input="x", k=12, best=3)) == 3
        assert len(acc.run(graph, input="x", k=4, best=None)) == 4
    assert sum(sizes) == 16


@pytest.mark.parametrize("k", [0, -1, "five", True, 2.5, None])
def test_a_number_that_cannot_be_is_refused_before_anything_runs(k: Any) -> None:
    embedder = FakeEngine()
    with (
        opened(embedder=embedder, index=index()) as acc,
        pytest.raises(
            GraphError, match="stage option out of range; at top_k of stage 'docs'"
        ) as caught,
    ):
        acc.run(searching(top_k=Input("k")), input="x", k=k)
    assert "input 'k'" in caught.value.__notes__[0]
    assert [call for call in embedder.calls if call.ids] == []


@pytest.mark.parametrize("said", ["ants", 7, {1: "ants"}])
def test_a_filter_that_is_none_is_refused(said: Any) -> None:
    with (
        opened(embedder=FakeEngine(), index=index()) as acc,
        pytest.raises(GraphError, match="where of stage 'docs'"),
    ):
        acc.run(searching(where=Input("filter")), input="x", filter=said)


def test_an_option_names_an_input_of_the_graph() -> None:
    graph = line(
        RAGraph(inputs=["input", "count"]).add_retrieval("docs", top_k=Input("coun")), "docs"
    )
    with (
        opened(embedder=FakeEngine(), index=index()) as acc,
        pytest.raises(
            GraphError, match=r"known-inputs: top_k of stage .docs. .*did you mean 'count'"
        ),
    ):
        acc.run(graph, input="x", count=1)


def test_hops_shape_the_graph() -> None:
    with pytest.raises(GraphError, match="hops of stage 'paths'"):
        RAGraph().add_graph_retrieval("paths", hops=Input("hops"))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", ["", 7, None])
def test_an_input_has_a_name(name: Any) -> None:
    with pytest.raises(GraphError, match="named by a text"):
        Input(name)


def test_the_text_of_a_graph_says_what_requests_set() -> None:
    graph = searching(top_k=Input("k"), where={"who": Input("tenant"), "year": 3})
    text = format(graph)
    assert 'top_k={"$input": "k"} where={"who": {"$input": "tenant"}, "year": 3}' in text
    assert parse(text) == graph.freeze()


def test_a_value_that_looks_like_an_input_stays_a_value() -> None:
    graph = searching(where={"who": {"$input": "tenant"}})
    assert parse(format(graph), references(graph)) == graph.freeze()


def test_an_unused_request_costs_no_pass() -> None:
    """Passes see the option and not a value of some request."""
    from graph_text import parse_primitives

    from rag_accel.graph.growth import grow
    from rag_accel.graph.primitive_text import format_primitives
    from rag_accel.passes.decompose import decompose
    from rag_accel.passes.manager import run_passes

    profiles = {"embedder": FakeEngine().profile, "index": RetrievalEngine(index()).profile}
    graph = searching(top_k=Input("k"), where=Input("filter")).freeze()
    plan = run_passes(decompose(grow(graph), profiles), PassContext(profiles))
    assert parse_primitives(format_primitives(plan.graph)) == plan.graph


def test_a_fallback_is_told_what_the_request_says() -> None:
    told: list[Any] = []

    def fail(query: str, k: int, where: Any = None) -> list[str]:
        raise ConnectionError("away")

    def find(query: str, k: int, where: Mapping[str, Any] | None = None) -> list[str]:
        told.append((k, where))
        return [query] * k

    graph = searching(top_k=Input("k"), where=Input("filter"), fallback="spare", retry=0)
    with opened(index=fail) as acc:
        acc.add_engine("spare", find, PrimitiveKind.SEARCHING)
        assert len(acc.run(graph, input="x", k=2, filter={"who": "ants"})) == 2
    assert told == [(2, {"who": "ants"})]
