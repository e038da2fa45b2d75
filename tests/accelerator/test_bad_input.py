"""Bad input ends its own request with a named error; the requests beside it never notice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from accel_harness import PATIENCE_S, WAYS, Gate, chain, opened, reply

from rag_accel import END, START, Accelerator, ConfigError, EngineOutputError, GraphError, RAGraph
from rag_accel.engine_api import Document, PrimitiveKind
from rag_accel.engines.retrieval import DocumentIndex, IndexSpec
from rag_accel.testing import FakeEngine, FakeSyncCall

Way = Callable[..., Any]
anyhow = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
ERROR = LookupError("no idea")


def among_others(acc: Accelerator, gate: Gate, graph: RAGraph, bad: str) -> BaseException:
    """Run a bad input in one batch with five good ones, which must be answered; return its error.

    ``graph`` must ask a language model, held up by ``gate``, for ``{input}`` as its answer.
    """
    first = acc.submit(graph, input="first")
    gate.wait_until_entered()
    handles = {text: acc.submit(graph, input=text) for text in ("a", "b", bad, "c", "d", "e")}
    gate.open()
    for text, handle in {**handles, "first": first}.items():
        if text != bad:
            assert handle.result(PATIENCE_S) == reply(text)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the test looks at it
        handles[bad].result(PATIENCE_S)
    return caught.value


def deciding(condition: Callable[[Any], Any]) -> RAGraph:
    """Return a graph that asks, and then lets a condition say how to go on."""
    graph = RAGraph()
    graph.add_generation("ask", prompt="{input}")
    graph.add_edge(START, "ask").add_edge("ask", condition)
    return graph


def raising(values: Any) -> str:
    if values["input"] == "bad":
        raise ERROR
    return END


def naming_nothing(values: Any) -> str:
    return "aks" if values["input"] == "bad" else END


def turning(values: Any) -> str:
    return "ask" if values["input"] == "bad" else END


def test_a_condition_that_raises_ends_its_own_request_alone() -> None:
    with Gate() as gate, opened(llm=FakeEngine(compute=gate)) as acc:
        assert among_others(acc, gate, deciding(raising), "bad") is ERROR


def test_a_condition_that_names_no_stage_ends_its_own_request_alone() -> None:
    with Gate() as gate, opened(llm=FakeEngine(compute=gate)) as acc:
        error = among_others(acc, gate, deciding(naming_nothing), "bad")
    assert isinstance(error, GraphError)
    for part in ("may not choose", "found 'aks'", "valid: ask, ask?, END", "did you mean 'ask'?"):
        assert part in str(error)
    assert error.where == "branch 'ask?'"


def test_a_loop_past_its_bound_ends_its_own_request_alone() -> None:
    with Gate() as gate, opened(llm=FakeEngine(compute=gate), max_loops=3) as acc:
        error = among_others(acc, gate, deciding(turning), "bad")
    assert isinstance(error, GraphError)
    for part in ("at stage 'ask'", "found turn 4", "valid: at most 3 turns", "max_loops"):
        assert part in str(error)


# Engines that do not fit ------------------------------------------------------------------------


def stage(role: str) -> RAGraph:
    """Return a graph of one stage that uses the engine ``mine``."""
    return chain(
        lambda graph, name: graph.add_function(name, lambda text: [text], inputs="input"),
        lambda graph, name: {
            "index": lambda: graph.add_retrieval(name, engine="mine"),
            "reranker": lambda: graph.add_rerank(name, documents="s0", engine="mine"),
            "llm": lambda: graph.add_generation(name, prompt="{input}", engine="mine"),
            "embedder": lambda: graph.add_retrieval(name, embedder="mine"),
        }[role](),
    )


KINDS = {
    "index": PrimitiveKind.SEARCHING,
    "reranker": PrimitiveKind.RERANKING,
    "llm": PrimitiveKind.DECODING,
    "embedder": PrimitiveKind.EMBEDDING,
}


@pytest.mark.parametrize("role", ["index", "reranker", "embedder"])
@anyhow
def test_a_callable_added_for_something_else_is_refused_before_it_is_called(
    way: Way, role: str
) -> None:
    mine = FakeSyncCall()
    with opened(index=FakeEngine()) as acc:
        acc.add_engine("mine", mine, PrimitiveKind.DECODING)
        with pytest.raises(GraphError) as caught:
            way(acc, stage(role), input="x")
        kind = KINDS[role]
        (line,) = caught.value.offenders
        assert line == (
            f"known-engines: stage 's1' needs {kind}, but engine 'mine' is a callable added for "
            f"DECODING; say add_engine('mine', fn, PrimitiveKind.{kind})"
        )
    assert mine.calls == []


@pytest.mark.parametrize(
    ("role", "mine"),
    [
        ("index", lambda query, k: [query]),
        ("reranker", lambda query, texts: [1.0] * len(texts)),
        ("embedder", lambda texts: np.ones((len(texts), 8))),
        ("llm", reply),
    ],
)
def test_a_callable_added_for_what_a_stage_needs_serves_under_any_name(
    role: str, mine: Any
) -> None:
    with opened(index=FakeEngine()) as acc:
        acc.add_engine("mine", mine, KINDS[role])
        assert acc.run(stage(role), input="x")
    with opened(index=FakeEngine(), engines={"mine": mine}) as acc:
        assert acc.run(stage(role), input="x")


def test_the_stages_of_each_graph_decide_what_a_callable_of_theirs_does() -> None:
    def mine(asked: str, *k: int) -> Any:
        return [asked] if k else reply(asked)

    with opened(engines={"mine": mine}) as acc:
        assert acc.compile(stage("index")).run(input="x")
        assert acc.run(stage("llm"), input="x") == reply("x")
        assert "SEARCHING" in acc.explain(stage("index"))
        assert acc.run(stage("index"), input="x")


def test_a_callable_that_two_stages_ask_for_two_things_is_refused() -> None:
    graph = RAGraph().add_retrieval("one", engine="mine")
    graph.add_generation("two", prompt="{one}", engine="mine")
    graph.add_edge(START, "one").add_edge("one", "two").add_edge("two", END)
    with opened(engines={"mine": reply}) as acc:
        with pytest.raises(GraphError) as caught:
            acc.run(graph, input="x")
        assert caught.value.offenders == (
            "known-engines: stage 'two' needs DECODING, but engine 'mine' is a callable that does "
            "SEARCHING for stage 'one'; name another one here",
        )
        assert acc.run(stage("llm"), input="x") == reply("x")


# Filters ----------------------------------------------------------------------------------------

DIM = 4


def index_of(*years: int) -> DocumentIndex:
    """Return documents that say their year, all in one place."""
    index = DocumentIndex(IndexSpec(DIM))
    documents = [Document(f"d{year}", str(year), {"year": year}) for year in years]
    index.add(documents, np.ones((len(documents), DIM)))
    return index


def ones(texts: Sequence[str]) -> Any:
    return np.ones((len(texts), DIM))


def searching(where: dict[str, Any], **options: Any) -> RAGraph:
    return chain(lambda graph, name: graph.add_retrieval(name, where=where, **options))


@anyhow
def test_a_filter_on_a_field_that_no_document_has_is_refused_with_those_that_exist(
    way: Way,
) -> None:
    with opened(embedder=ones, index=index_of(1932, 1933)) as acc:
        with pytest.raises(GraphError) as caught:
            way(acc, searching({"yaer": 1932}), input="x")
        assert caught.value.offenders == (
            "known-fields: stage 's0' filters on 'yaer', which no document of engine 'index' has; "
            "valid: year; did you mean 'year'?",
        )
        (hit,) = way(acc, searching({"year": 1932}), input="x")
        assert hit.document.id == "d1932"


def test_a_filter_that_is_refused_harms_no_search_beside_it() -> None:
    with Gate() as gate, opened(embedder=FakeEngine(compute=gate), index=eights()) as acc:
        good = [acc.submit(searching({"n": n % 2}), input=str(n)) for n in range(6)]
        gate.wait_until_entered()
        with pytest.raises(GraphError, match="known-fields"):
            acc.submit(searching({"m": 1}), input="x")
        gate.open()
        for n, handle in enumerate(good):
            (hit,) = handle.result(PATIENCE_S)
            assert hit.document.metadata == {"n": n % 2}


def eights() -> DocumentIndex:
    """Return two documents with vectors of the dimension of fakes."""
    index = DocumentIndex(IndexSpec(8))
    index.add([Document(str(n), "", {"n": n}) for n in range(2)], np.ones((2, 8)))
    return index


def test_a_field_whose_documents_are_gone_is_no_slip() -> None:
    index = index_of(1932)
    index.add([Document("d", "", {"author": "me"})], np.ones((1, DIM)))
    with opened(embedder=ones, index=index) as acc:
        index.delete(["d"])
        assert acc.run(searching({"author": "me"}), input="x") == ()


def test_a_field_that_user_code_brings_first_is_no_slip() -> None:
    index = index_of(1932)

    def upload(text: str) -> None:
        index.add([Document("d", text, {"upload": 1})], np.ones((1, DIM)))

    graph = chain(
        lambda g, name: g.add_function(name, upload, inputs="input"),
        lambda g, name: g.add_retrieval(name, where={"upload": 1}),
    )
    with opened(embedder=ones, index=index) as acc:
        (hit,) = acc.run(graph, input="x")
        assert hit.document.id == "d"


# Vectors that do not fit the index --------------------------------------------------------------


def vectors(texts: Sequence[str]) -> Any:
    """Embed with what a text asks for: a dimension, or NaN."""
    size = int(texts[0]) if texts[0].isdigit() else DIM
    return np.full((1, size), np.nan if texts[0] == "nan" else 1.0)


@pytest.mark.parametrize(
    ("bad", "error", "parts"),
    [
        ("5", ConfigError, ("found shape (5,)", "valid: shape (4,)", "next: embed with the model")),
        ("nan", EngineOutputError, ("at s0", "found NaN or infinity in text 0")),
    ],
)
def test_a_vector_that_does_not_fit_the_index_ends_its_own_request_alone(
    bad: str, error: type[Exception], parts: tuple[str, ...]
) -> None:
    graph = chain(lambda g, name: g.add_retrieval(name, top_k=2))
    with opened(embedder=vectors, index=index_of(1, 2, 3)) as acc:
        handles = [acc.submit(graph, input=text) for text in ("4", bad, "4", "four")]
        for place in (0, 2, 3):
            found = handles[place].result(PATIENCE_S)
            assert [hit.document.id for hit in found] == ["d1", "d2"]
        with pytest.raises(error) as caught:
            handles[1].result(PATIENCE_S)
        for part in parts:
            assert part in str(caught.value)
