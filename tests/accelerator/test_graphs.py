"""A graph gives the same result however it is run and whatever its engines are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from accel_harness import TEXT_WAYS, WAYS, chain, generation_graph, opened, reply

from rag_accel import END, START, RAGraph
from rag_accel.engine_api import Document, PrimitiveKind, ScoredDocument
from rag_accel.testing import FakeAsyncCall, FakeEngine, FakeSyncCall

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


def test_engines_of_other_names_and_kinds_can_be_added() -> None:
    graph = chain(
        lambda g, name: g.add_generation(name, prompt="{input}", engine="small"),
        lambda g, name: g.add_retrieval(name, query="s0", top_k=1, engine="web"),
    )
    with opened(engines={"small": reply}) as acc:
        acc.add_engine("web", lambda query, k: [query] * k, PrimitiveKind.SEARCHING)
        (found,) = acc.run(graph, input="x")
        assert found.document.text == reply("x")


@any_text_way
def test_a_function_may_run_a_graph_on_its_own_accelerator(way: Way) -> None:
    with opened(llm=FakeEngine()) as acc:

        def nested(text: str) -> str:
            return acc.run(generation_graph(), input=text)

        graph = chain(lambda g, name: g.add_function(name, nested, inputs="input"))
        assert way(acc, graph, input="x") == reply("x")
