"""Prompts prefilled ahead on an engine that reuses texts: nothing is computed in vain."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
from chunk_prompts import answer, asked, tokens
from fake_runner import FakeRunner, finish, tokenizer
from graph_texts import (
    DOCUMENTS,
    TEXTS,
    WatchedEngine,
    longest_first,
    passage_texts,
    search,
    use_of,
)
from tiny_chat import model

from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.engine_api import (
    ChunkSpan,
    EngineRequest,
    GenerationInput,
    GenerationOutput,
    Message,
    PrimitiveKind,
    PromptUse,
    ScoredDocument,
    SearchQuery,
    StepBudget,
    WorkId,
)
from rag_accel.engines.llm.local.engine import LocalLLMEngine
from rag_accel.engines.llm.local.model.loading import load
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.testing import FakeEngine
from rag_accel.testing.fakes import FAKE_PROFILE

LONG = "One sequence of tokens, said the guide, is what a lane holds keys and values of. " * 6
KINDS = PrimitiveKind


def answering(prompt: str) -> RAGraph:
    graph = RAGraph().add_retrieval("find", top_k=2, output="docs")
    graph.add_generation("answer", prompt, max_tokens=6)
    return graph.add_edge(START, "find").add_edge("find", "answer").add_edge("answer", END)


def drafting(prompt: str) -> RAGraph:
    """Return a graph whose documents are there while the draft is still written."""
    graph = RAGraph().add_retrieval("find", top_k=2, output="docs")
    graph.add_generation("draft", "{input}", max_tokens=6, engine="writer")
    graph.add_generation("answer", prompt, max_tokens=6)
    graph.add_edge(START, ["find", "draft"]).add_edge(["find", "draft"], "answer")
    return graph.add_edge("answer", END)


PATIENCE_S = 20.0


class HeldEngine(WatchedEngine):
    """An engine that says when it has prefilled a beginning."""

    def __init__(self, runner: Any = None, **options: Any) -> None:
        super().__init__(runner, **options)
        self.has_begun = threading.Event()

    def step(self, budget: StepBudget) -> Any:
        outputs = super().step(budget)
        if any(one.handle is not None for one in outputs):
            self.has_begun.set()
        return outputs

    def wait(self) -> None:
        assert self.has_begun.wait(PATIENCE_S), "nothing of the prompt was computed meanwhile"
        self.has_begun.clear()


def run_ahead(engine: HeldEngine, graph: RAGraph, *, drafted: bool, runs: int = 2) -> list[Any]:
    """Run a graph; what its answer waits for ends only once the answer's beginning is computed."""
    find, draft = (held(engine, is_last) for is_last in (not drafted, drafted))
    with Accelerator(llm=engine, index=find, embedder=FakeEngine()) as accelerator:
        accelerator.add_engine("writer", draft)
        return [accelerator.run(graph, input="How high is it?") for _ in range(runs)]


def run_plainly(engine: Any, graph: RAGraph, *, passes: str = "none") -> Any:
    parts: dict[str, Any] = {"index": FakeEngine(compute=end), "embedder": FakeEngine()}
    with Accelerator(llm=engine, passes=passes, **parts) as accelerator:
        accelerator.add_engine("writer", FakeEngine(compute=end))
        return accelerator.run(graph, input="How high is it?")


def held(engine: HeldEngine, waits: bool) -> FakeEngine:
    def end_later(payload: Any) -> Any:
        engine.wait()
        return end(payload)

    return FakeEngine(compute=end_later if waits else end)


def end(payload: Any) -> Any:
    if isinstance(payload, SearchQuery):
        return tuple(ScoredDocument(one, 0.0) for one in DOCUMENTS[: payload.k])
    return GenerationOutput("It is high.")


def test_a_beginning_before_the_texts_is_computed_once() -> None:
    engine, graph = HeldEngine(), answering(LONG + "{docs}\n\n{input}")
    (text,) = run_ahead(engine, graph, drafted=False, runs=1)
    assert [one.kind for one in engine.asked] == [KINDS.PARTIAL_PREFILLING, KINDS.DECODING]
    ((prompt, done),) = engine.answers()
    assert passage_texts(prompt) == list(TEXTS[:2])
    alone = WatchedEngine()
    assert run_plainly(alone, graph, passes="join_prefill") == text
    # Texts that are encoded at the same time each compute their short head.
    assert engine.runner.computed <= alone.runner.computed
    assert use_of(done) == use_of(alone.answers()[0][1])


def test_a_beginning_with_texts_stops_before_the_first() -> None:
    engine, graph = HeldEngine(), drafting(LONG + "{docs}\n\n{input}\n\n{draft}")
    first, second = run_ahead(engine, graph, drafted=True)
    assert first == second == run_plainly(WatchedEngine(), graph)
    partial = engine.asked[0]
    assert partial.kind is KINDS.PARTIAL_PREFILLING
    assert passage_texts(partial.payload) == list(TEXTS[:2])
    use = use_of(engine.answers()[1][1])
    assert use.from_chunks == tokens(*TEXTS[:2])
    rows = [len(part) for forward in engine.runner.forwards for part in forward]
    joined = WatchedEngine()
    run_plainly(joined, graph, passes="join_prefill")
    assert sum(rows) < 2 * joined.runner.computed


@pytest.mark.parametrize("least", [8, 10_000])
def test_a_whole_prefilling_computes_no_text_that_is_reused(least: int) -> None:
    apart = WatchedEngine(least_chunk_tokens=least, prefix_lanes=0)
    joined = WatchedEngine(least_chunk_tokens=least, prefix_lanes=0)
    graph = answering("{docs}\n\n{input}")
    answers = {
        run_plainly(apart, graph, passes="none"),
        run_plainly(joined, graph, passes="join_prefill"),
    }
    assert len(answers) == 1
    assert [one.kind for one in apart.asked] == [KINDS.PREFILLING, KINDS.DECODING]
    # Where the whole prompt was prefilled, its last token is computed again to go on behind it.
    assert apart.runner.computed - joined.runner.computed <= 1
    assert use_of(apart.answers()[0][1]) == use_of(joined.answers()[0][1])


def test_short_texts_are_prefilled_with_the_rest() -> None:
    engine = HeldEngine(least_chunk_tokens=10_000)
    graph = drafting(LONG + "{docs}\n\n{input}\n\n{draft}")
    run_ahead(engine, graph, drafted=True, runs=1)
    ((_, done),) = engine.answers()
    assert use_of(done) == PromptUse(computed=done.prompt_tokens)
    extra = engine.runner.computed - done.prompt_tokens - done.completion_tokens
    assert extra <= 2


@pytest.mark.parametrize("kv_reuse", ["full", "fused"])
@pytest.mark.parametrize("drafted", [False, True])
def test_a_real_model_answers_as_without_passes(kv_reuse: str, drafted: bool) -> None:
    prompt = LONG + "{docs}\n\n{input}"
    graph = drafting(prompt + " {draft}") if drafted else answering(prompt)
    answers: list[Any] = []
    for ahead in (True, False):
        loaded = load(model(), tokenizer(), pool_bytes=1 << 24)
        engine = HeldEngine(loaded.runner, kv_reuse=kv_reuse)
        if ahead:
            answers += run_ahead(engine, graph, drafted=drafted)
        else:
            answers.append(run_plainly(engine, graph))
        uses = [use_of(done) for _, done in engine.answers()]
        assert all(one.approximate > 0 for one in uses)
        assert all((one.recomputed > 0) == (kv_reuse == "fused") for one in uses)
    assert len(set(answers)) == 1


def test_lists_and_items_hand_on_exact_spans() -> None:
    """What slices of a reranking and of a union join is what the prompt's spans are of."""
    from rag_accel import workflows

    graph = workflows.advanced_document_qa(top_k=3, top_n=2, max_tokens=6, synthesis="stuff")
    answers: list[Any] = []
    for passes in ("none", "all"):
        engine = WatchedEngine(FakeRunner())
        ranking = FakeEngine(replace(FAKE_PROFILE, max_batch=1), compute=scores)
        with Accelerator(llm=engine, index=search, passes=passes, reranker=ranking) as accelerator:
            answers.append(accelerator.run(graph, input="How high is it?"))
            start = len(engine.asked)
            answers.append(accelerator.run(graph, input="How high is it?"))
        ((_, _), (prompt, done)) = engine.answers(start)
        assert len(passage_texts(prompt)) == 2
        assert use_of(done).from_chunks == tokens(*passage_texts(prompt))
    assert len(set(answers)) == 1


def scores(payload: Any) -> Any:
    ranked = longest_first(payload.query, [one.text for one in payload.documents])
    found = [
        ScoredDocument(one, score) for one, score in zip(payload.documents, ranked, strict=True)
    ]
    found.sort(key=lambda one: -one.score)
    return tuple(found[: payload.top_n])


# The engine alone


def prefilling(id: str, **fields: Any) -> Any:
    whole = asked(id, *TEXTS[:2], **fields)
    return replace(whole, kind=KINDS.PREFILLING)


def test_a_cancelled_prefilling_before_texts_leaves_nothing() -> None:
    engine = WatchedEngine(prefix_lanes=0)
    engine.submit([prefilling("one")])
    engine.cancel([WorkId("one")])
    assert engine.held_bytes == 0


def test_a_released_prefilling_before_texts_is_no_loss_to_the_answer() -> None:
    engine = WatchedEngine(prefix_lanes=0)
    engine.submit([prefilling("one")])
    (prefilled,) = finish(engine, "one")
    assert prefilled.handle is not None
    engine.release([prefilled.handle])
    assert engine.held_bytes == 0
    apart = answer(engine, asked("two", *TEXTS[:2]))
    assert apart.text == answer(WatchedEngine(), asked("two", *TEXTS[:2])).text


def test_a_prompt_that_begins_with_a_text_has_nothing_to_prefill() -> None:
    bare = "{% for m in messages %}{{ m.content }}{% endfor %}"
    engine = LocalLLMEngine(
        FakeRunner(),
        tokenizer(),
        template=bare,
        options=LocalOptions(kv_reuse="full", reuse_always=True),
    )
    content = f"{TEXTS[0]}\n\nHow high is it?"
    payload = GenerationInput(
        (Message("user", content),), max_tokens=6, chunk_spans=(ChunkSpan(0, 0, len(TEXTS[0])),)
    )
    engine.submit([EngineRequest(WorkId("one"), "one", KINDS.PREFILLING, payload)])
    (prefilled,) = finish(engine, "one")
    assert prefilled.handle is not None
    resumed = EngineRequest(WorkId("two"), "two", KINDS.DECODING, payload, handle=prefilled.handle)
    done = answer(engine, resumed)
    assert done.use == PromptUse(computed=done.prompt_tokens, approximate=tokens(TEXTS[0]))
    engine.close()
    assert engine.held_bytes == 0
