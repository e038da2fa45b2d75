"""A graph gives the same result however it is run and whatever its engines are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from accel_harness import TEXT_WAYS, WAYS, chain, generation_graph, opened, reply

from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.engine_api import Document, PrimitiveKind, ScoredDocument, SearchQuery
from rag_accel.testing import FakeAsyncCall, FakeEngine, FakeSyncCall, compute, vector_of

Way = Callable[..., Any]
anyhow = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
any_text_way = pytest.mark.parametrize("way", TEXT_WAYS.values(), ids=TEXT_WAYS.keys())


def hyde() -> RAGraph:
    graph = RAGraph()
    graph.add_generation("hypothesis", prompt="Answer {input}.", output="passage")
    graph.add_retrieval("search", query="passage", top_k=2, output="docs")
    graph.add_generation("answer", prompt="{input}: {docs}", system="Be brief.")
    for edge in [
        (START, "hypothesis"),
        ("hypothesis", "search"),
        ("search", "answer"),
        ("answer", END),
    ]:
        graph.add_edge(*edge)
    return graph


def hyde_result(question: str) -> str:
    passage = reply(f"Answer {question}.")
    found = compute(SearchQuery(vector_of(passage), 2))
    texts = "\n\n".join(f"[{n}] {one.document.text}" for n, one in enumerate(found, start=1))
    return reply(f"{question}: {texts}")


@any_text_way
def test_retrieval_between_generations_on_owned_engines(way: Way) -> None:
    with opened(llm=FakeEngine(), embedder=FakeEngine(), index=FakeEngine()) as acc:
        assert way(acc, hyde(), input="why") == hyde_result("why")


@anyhow
def test_owned_and_borrowed_engines_mixed(way: Way) -> None:
    graph = hyde()
    graph.add_rerank("rerank", documents="docs", top_n=1)
    graph.add_edge("search", "rerank")
    graph.add_edge("rerank", END)
    index = FakeAsyncCall(lambda query, k: [f"{query} {n}" for n in range(k)])
    reranker = FakeSyncCall(lambda query, texts: range(len(texts)))
    with opened(llm=FakeEngine(), index=index, reranker=reranker) as acc:
        passage = reply("Answer x.")
        assert way(acc, graph, input="x") == {
            "answer": reply(f"x: [1] {passage} 0\n\n[2] {passage} 1"),
            "rerank": (ScoredDocument(Document("search/1", f"{passage} 1"), 1.0),),
        }
        assert index.calls[0].args == (passage, 2)
        assert reranker.calls[0].args == ("x", [f"{passage} 0", f"{passage} 1"])


def test_a_borrowed_embedder_serves_an_owned_index() -> None:
    graph = chain(lambda g, name: g.add_retrieval(name, top_k=3))
    embedder = FakeSyncCall(lambda texts: [[0.5] * 8 for _ in texts])
    with opened(embedder=embedder, index=FakeEngine()) as acc:
        expected = compute(SearchQuery(np.full(8, 0.5, np.float32), 3))
        assert acc.run(graph, input="x") == expected
        assert embedder.calls[0].args == (["x"],)


def test_several_stages_before_end_give_a_dict_in_the_order_of_the_stages() -> None:
    graph = RAGraph()
    graph.add_function("b", lambda x: x + "b", inputs="input", output="second")
    graph.add_function("a", lambda x: x + "a", inputs="input", output="first")
    graph.add_edge(START, ["a", "b"]).add_edge(["a", "b"], END)
    with opened() as acc:
        assert list(acc.run(graph, input="x").items()) == [("second", "xb"), ("first", "xa")]


def test_outputs_name_what_comes_back() -> None:
    with opened(llm=FakeEngine(), embedder=FakeEngine(), index=FakeEngine()) as acc:
        found = acc.run(hyde(), outputs=["input", "passage"], input="x")
        assert found == {"input": "x", "passage": reply("Answer x.")}
        handle = acc.submit(hyde(), outputs=["passage"], input="x")
        assert handle.result(20) == {"passage": reply("Answer x.")}


def test_a_graph_without_any_stage_gives_nothing() -> None:
    graph = RAGraph()
    graph.add_edge(START, END)
    with opened() as acc:
        assert acc.run(graph, input="x") == {}


def test_a_graph_may_be_frozen_first_and_run_many_times() -> None:
    frozen = generation_graph().freeze()
    with opened(llm=FakeEngine()) as acc:
        assert [acc.run(frozen, input=str(n)) for n in range(5)] == [
            reply(str(n)) for n in range(5)
        ]


def test_engines_of_other_names_and_kinds_can_be_added() -> None:
    graph = chain(
        lambda g, name: g.add_generation(name, prompt="{input}", engine="small"),
        lambda g, name: g.add_retrieval(name, query="s0", top_k=1, engine="web"),
    )
    with opened(engines={"small": reply}) as acc:
        acc.add_engine("web", lambda query, k: [query] * k, PrimitiveKind.SEARCHING)
        (found,) = acc.run(graph, input="x")
        assert found.document.text == reply("x")


def test_two_accelerators_do_not_know_each_other() -> None:
    one, other = FakeEngine(), FakeEngine()
    with opened(llm=one) as first, opened(llm=other) as second:
        first.run(generation_graph(), input="x")
        assert not other.batches
        first.close()
        assert second.run(generation_graph(), input="y") == reply("y")


def test_an_accelerator_inside_a_function_of_another_one() -> None:
    with opened(llm=FakeEngine()) as inner, opened() as outer:
        graph = chain(
            lambda g, name: g.add_function(
                name, lambda text: inner.run(generation_graph(), input=text), inputs="input"
            )
        )
        assert outer.run(graph, input="x") == reply("x")


@any_text_way
def test_a_function_may_run_a_graph_on_its_own_accelerator(way: Way) -> None:
    with opened(llm=FakeEngine()) as acc:

        def nested(text: str) -> str:
            return acc.run(generation_graph(), input=text)

        graph = chain(lambda g, name: g.add_function(name, nested, inputs="input"))
        assert way(acc, graph, input="x") == reply("x")


def test_an_unused_accelerator_closes() -> None:
    with Accelerator() as acc:
        assert acc.is_idle
