"""Documents are hinted at only to engines in whose prompts of this graph they will stand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.engine_api import Document, GenerationOutput, ScoredDocument
from rag_accel.engines import MemoryGraph
from rag_accel.testing import FakeEngine
from rag_accel.testing.fakes import FAKE_PROFILE
from rag_accel.workflows import steps

TEXTS = ["One text.", "Another text.", "A third text."]


def search(query: str, k: int) -> list[str]:
    return TEXTS[:k]


def last_first(query: str, texts: list[str]) -> list[float]:
    return [float(place) for place, _ in enumerate(texts)]


def hints(engine: FakeEngine) -> list[list[str]]:
    return [list(call.ids) for call in engine.calls if call.method == "hint"]


def chain(graph: RAGraph, *names: str) -> RAGraph:
    for source, target in zip((START, *names), (*names, END), strict=True):
        graph.add_edge(source, target)
    return graph


def found(prompt: str = "{find} {input}", engine: str = "llm") -> RAGraph:
    """Return a graph whose search is read by a prompt, or by none."""
    graph = RAGraph().add_retrieval("find", top_k=2)
    return chain(graph.add_generation("answer", prompt, engine=engine), "find", "answer")


def run(graph: RAGraph, llm: Any, passes: str = "default", **others: Any) -> list[list[str]]:
    """Run a graph beside an engine that takes hints; return the hints of both."""
    beside = FakeEngine()
    parts: dict[str, Any] = {"index": search, "reranker": last_first, **others}
    with Accelerator(llm=llm, passes=passes, **parts) as accelerator:
        accelerator.add_engine("beside", beside)
        accelerator.run(graph, input="Which?")
        assert "hints_failed" not in accelerator.metrics.snapshot()
    assert hints(beside) == []
    return hints(llm) if isinstance(llm, FakeEngine) else []


def test_what_a_prompt_names_is_hinted_at_to_its_engine_alone() -> None:
    assert run(found(), FakeEngine()) == [TEXTS[:2]]


def test_what_the_system_prompt_names_is_hinted_at() -> None:
    graph = RAGraph().add_retrieval("find", top_k=1)
    graph.add_generation("answer", "{input}", system="Know {find}")
    assert run(chain(graph, "find", "answer"), FakeEngine()) == [TEXTS[:1]]


def test_what_no_prompt_names_is_not_hinted_at() -> None:
    assert run(found("{input}"), FakeEngine()) == []


def test_a_borrowed_generation_has_nothing_read_ahead() -> None:
    assert run(found(), lambda prompt: "It is.") == []


def test_an_engine_that_reads_nothing_ahead_is_sent_nothing() -> None:
    exact = FakeEngine(replace(FAKE_PROFILE, capabilities=frozenset()))
    assert run(found(), exact) == []


def test_each_engine_is_sent_what_its_own_prompts_name() -> None:
    graph = RAGraph().add_retrieval("one", top_k=1).add_retrieval("two", top_k=2)
    graph.add_generation("draft", "{one}", engine="writer").add_generation("answer", "{two}{draft}")
    llm, writer = FakeEngine(), FakeEngine()
    with Accelerator(llm=llm, index=search) as accelerator:
        accelerator.add_engine("writer", writer)
        accelerator.run(chain(graph, "one", "draft", "two", "answer"), input="Which?")
    assert (hints(writer), hints(llm)) == ([TEXTS[:1]], [TEXTS[:2]])


def through(function: Callable[..., Any]) -> RAGraph:
    graph = RAGraph().add_retrieval("find", top_k=3).add_rerank("rank", documents="find")
    graph.add_function("some", function, inputs="rank").add_generation("answer", "{some}")
    return chain(graph, "find", "rank", "some", "answer")


@pytest.mark.parametrize(
    "function",
    [steps.merged, steps.first_of, steps.NthAlone(0), steps.as_it_is],
    ids=["union", "first", "item", "same"],
)
def test_what_functions_of_ours_hand_on_is_hinted_at_once_found(function: Any) -> None:
    assert run(through(function), FakeEngine()) == [TEXTS, TEXTS[::-1]]


def test_of_a_function_of_the_users_its_own_documents_are_hinted_at() -> None:
    def best(documents: Any) -> list[Any]:
        return list(documents[:1])

    assert run(through(best), FakeEngine()) == [TEXTS[2:]]


@pytest.mark.parametrize(
    "value", ["text", 7, iter([Document("a", "text")]), {"a": Document("a", "text")}, [1, None]]
)
def test_a_function_that_hands_on_no_documents_hints_at_none(value: Any) -> None:
    assert run(through(lambda documents: value), FakeEngine()) == []
    if not isinstance(value, str | int | dict | list):
        assert next(value) == Document("a", "text")


class _Unreadable(list[Any]):
    def __iter__(self) -> Any:
        raise ValueError("not to be read")


def test_documents_that_cannot_be_read_end_no_request() -> None:
    llm = FakeEngine(compute=lambda payload: GenerationOutput("It is."))
    with Accelerator(llm=llm, index=search, reranker=last_first) as accelerator:
        with pytest.raises(ValueError, match="not to be read"):  # by its prompt, as ever
            accelerator.run(through(lambda documents: _Unreadable()), input="Which?")
        assert accelerator.run(found(), input="Which?") == "It is."


@pytest.mark.parametrize("passes", ["none", "default", "all"])
def test_slices_of_a_reranking_are_hinted_at_as_one(passes: str) -> None:
    def rank(payload: Any) -> Any:
        ranked = [ScoredDocument(one, float(at)) for at, one in enumerate(payload.documents)]
        return tuple(ranked[::-1][: payload.top_n])

    graph = RAGraph().add_retrieval("find", top_k=3).add_rerank("rank", documents="find", top_n=2)
    graph.add_generation("answer", "{rank}")
    ranking = FakeEngine(replace(FAKE_PROFILE, max_batch=1), compute=rank)
    sent = run(chain(graph, "find", "rank", "answer"), FakeEngine(), passes, reranker=ranking)
    assert [len(texts) for texts in sent] == [3, 2]


def test_paths_of_a_graph_are_hinted_at() -> None:
    graph = RAGraph().add_graph_retrieval("facts", link="words", hops=1)
    graph.add_generation("answer", "{facts}")
    known = MemoryGraph([("Ada", "wrote to", "Charles")])
    llm = FakeEngine()
    with Accelerator(llm=llm, graph=known, embedder=FakeEngine()) as accelerator:
        accelerator.run(chain(graph, "facts", "answer"), input="Whom did Ada write to?")
        assert "hints_failed" not in accelerator.metrics.snapshot()
    assert hints(llm) == [["Ada -> wrote to -> Charles"]]
