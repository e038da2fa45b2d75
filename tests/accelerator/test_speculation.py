"""Answers that begin before their search ends are those that it leads to, or are dropped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from accel_harness import PATIENCE_S, opened, reply

from rag_accel import END, START, Accelerator, EngineError, RAGraph
from rag_accel.engine_api import (
    Document,
    EngineBase,
    EngineOutput,
    EngineProfile,
    EngineRequest,
    PrimitiveKind,
    Provisional,
    ScoredDocument,
    StepBudget,
    WorkId,
)
from rag_accel.engines import RerankEngine
from rag_accel.graph.growth import grow
from rag_accel.graph.primitives import PrimitiveGraph
from rag_accel.passes.context import PassContext
from rag_accel.passes.decompose import decompose
from rag_accel.passes.manager import run_passes
from rag_accel.requests.speculation_record import SpeculationRecord
from rag_accel.requests.speculations import SpeculatedAnswer, SpeculatedPair, Speculations
from rag_accel.requests.values import Values
from rag_accel.scheduler.messages import EngineName, NodeKey, RequestId, Stakes
from rag_accel.testing import FAKE_PROFILE, FakeEngine, Faults

Found = tuple[ScoredDocument, ...]


def found(*texts: str) -> Found:
    return tuple(ScoredDocument(Document(text, f"text {text}"), 1.0) for text in texts)


def prompt(*texts: str) -> str:
    listed = "\n\n".join(f"[{at}] text {text}" for at, text in enumerate(texts, 1))
    return f"Read {listed}. x"


def graph(**options: Any) -> RAGraph:
    made = RAGraph(["input"])
    made.add_retrieval("search", top_k=2, output="docs")
    made.add_generation("answer", prompt="Read {docs}. {input}", **options)
    return made.add_edge(START, "search").add_edge("search", "answer").add_edge("answer", END)


class ScriptedSearch(EngineBase):
    """A search whose provisional results, and the turns of whose steps, a test decides."""

    profile = EngineProfile(kinds=frozenset({PrimitiveKind.SEARCHING}), max_threads=0, stepped=True)

    def __init__(self, *revisions: Found | Exception) -> None:
        self.revisions = revisions
        self.turns = threading.Semaphore(0)
        self.asked: list[EngineRequest] = []
        self._at: dict[WorkId, int] = {}

    def submit(self, work: Sequence[EngineRequest]) -> None:
        self.asked += work
        self._at.update((one.id, 0) for one in work)

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        assert self.turns.acquire(timeout=PATIENCE_S), "the search had no turn"
        outputs: list[EngineOutput] = []
        for work, at in list(self._at.items()):
            now = self.revisions[at]
            self._at[work] = at + 1
            if isinstance(now, Exception):
                outputs.append(EngineOutput(work, "error", error=now))
            elif at + 1 == len(self.revisions):
                outputs.append(EngineOutput(work, "final", now))
            else:
                done = (at + 1) / len(self.revisions)
                told = Provisional(now, done, 0.0, 1.0)
                outputs.append(EngineOutput(work, "progress", told))
        for output in outputs:
            if output.kind in ("final", "error"):
                del self._at[output.id]
        return outputs

    def cancel(self, ids: Sequence[WorkId]) -> None:
        for work in ids:
            self._at.pop(work, None)


class WatchedLLM(FakeEngine):
    """An LLM of several steps that tells what it was asked, dropped, and has ended."""

    def __init__(self, steps: int = 3, **parts: Any) -> None:
        super().__init__(replace(FAKE_PROFILE, max_threads=0), steps=steps, **parts)
        self.gate = threading.Event()
        self.gate.set()
        self.asked: list[EngineRequest] = []
        self.has_work, self.has_ended = threading.Event(), threading.Event()

    def submit(self, work: Sequence[EngineRequest]) -> None:
        self.asked += [one for one in work if one.kind is PrimitiveKind.DECODING]
        super().submit(work)
        self.has_work.set()

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        assert self.gate.wait(PATIENCE_S)
        outputs = super().step(budget)
        if any(output.kind in ("final", "error") for output in outputs):
            self.has_ended.set()
        return outputs

    def prompts(self) -> list[str]:
        return [one.payload.messages[-1].content for one in self.asked]


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every provisional result be trusted, so that a test decides what is right."""
    stakes = staticmethod(lambda record, seen: Stakes(1.0, 1.0))  # type: ignore[misc]
    monkeypatch.setattr(SpeculationRecord, "rule", stakes)


def counts(acc: Accelerator) -> dict[str, Any]:
    snapshot = acc.metrics.snapshot()
    return {
        name.removeprefix("speculation_"): sum(value.values())
        for name, value in snapshot.items()
        if name.startswith("speculation_")
    }


def run(acc: Accelerator, made: RAGraph | None = None, **options: Any) -> Any:
    return acc.submit(graph() if made is None else made, input="x", **options)


def test_an_answer_that_was_begun_with_the_final_documents_is_taken_over() -> None:
    search, llm = ScriptedSearch(found("a", "b"), found("a", "b")), WatchedLLM()
    with opened(llm=llm, index=search, embedder=FakeEngine()) as acc:
        handle = run(acc)
        search.turns.release()
        assert llm.has_work.wait(PATIENCE_S)
        search.turns.release()
        assert handle.result(PATIENCE_S) == reply(prompt("a", "b"))
        assert llm.prompts() == [prompt("a", "b")]
        assert counts(acc) == {"hits": 1}


def test_an_answer_that_has_ended_before_its_search_waits_for_it() -> None:
    search, llm = ScriptedSearch(found("a"), found("a")), WatchedLLM()
    with opened(llm=llm, index=search, embedder=FakeEngine()) as acc:
        handle = run(acc)
        search.turns.release()
        assert llm.has_ended.wait(PATIENCE_S)
        assert not handle.done
        search.turns.release()
        assert handle.result(PATIENCE_S) == reply(prompt("a"))
        assert len(llm.asked) == 1
        counted = acc.metrics.snapshot()["engines"]["llm"]["completion_tokens"]
        assert counted == handle.usage.completion_tokens > 0


def test_an_answer_that_was_begun_with_other_documents_is_dropped() -> None:
    search, llm = ScriptedSearch(found("a"), found("b")), WatchedLLM()
    with opened(llm=llm, index=search, embedder=FakeEngine()) as acc:
        handle = run(acc)
        search.turns.release()
        assert llm.has_work.wait(PATIENCE_S)
        search.turns.release()
        assert handle.result(PATIENCE_S) == reply(prompt("b"))
        assert llm.prompts() == [prompt("a"), prompt("b")]
        assert counts(acc) == {"misses": 1}


def test_a_revision_begins_the_answer_again() -> None:
    search, llm = ScriptedSearch(found("a"), found("b"), found("b")), WatchedLLM()
    with opened(llm=llm, index=search, embedder=FakeEngine()) as acc:
        handle = run(acc)
        for at in (1, 2):
            llm.has_work.clear()
            search.turns.release()
            assert llm.has_work.wait(PATIENCE_S), at
        search.turns.release()
        assert handle.result(PATIENCE_S) == reply(prompt("b"))
        assert counts(acc) == {"hits": 1, "misses": 1}


def test_the_order_of_documents_counts() -> None:
    search, llm = ScriptedSearch(found("a", "b"), found("b", "a")), WatchedLLM()
    with opened(llm=llm, index=search, embedder=FakeEngine()) as acc:
        handle = run(acc)
        search.turns.release(2)
        assert handle.result(PATIENCE_S) == reply(prompt("b", "a"))


def test_nothing_is_streamed_before_the_search_has_ended() -> None:
    search, llm = ScriptedSearch(found("a"), found("a")), WatchedLLM()
    with opened(llm=llm, index=search, embedder=FakeEngine()) as acc:
        texts: list[str] = []
        seen_early: list[str] = []

        def consume() -> None:
            texts.extend(acc.stream(graph(), input="x"))

        thread = threading.Thread(target=consume)
        thread.start()
        search.turns.release()
        assert llm.has_ended.wait(PATIENCE_S)
        seen_early += texts
        search.turns.release()
        thread.join(PATIENCE_S)
        assert seen_early == []
        assert "".join(texts) == reply(prompt("a"))
        assert len(texts) > 1
        assert len(llm.asked) == 1


def test_an_error_of_it_concerns_nobody() -> None:
    def broken(request: EngineRequest) -> Any:
        return EngineError("broken") if "speculated" in request.id else None

    search = ScriptedSearch(found("a"), found("a"))
    llm = WatchedLLM(faults=Faults(item=broken))
    with opened(llm=llm, index=search, embedder=FakeEngine()) as acc:
        handle = run(acc)
        search.turns.release()
        assert llm.has_ended.wait(PATIENCE_S)
        search.turns.release()
        assert handle.result(PATIENCE_S) == reply(prompt("a"))
        assert counts(acc) == {"misses": 1}


def test_a_failed_search_drops_it() -> None:
    search, llm = ScriptedSearch(found("a"), EngineError("no index")), WatchedLLM()
    with opened(llm=llm, index=search, embedder=FakeEngine()) as acc:
        handle = run(acc)
        search.turns.release()
        assert llm.has_work.wait(PATIENCE_S)
        search.turns.release()
        with pytest.raises(EngineError, match="no index"):
            handle.result(PATIENCE_S)


def test_a_cancelled_request_leaves_nothing() -> None:
    search, llm = ScriptedSearch(found("a"), found("a")), WatchedLLM(steps=1000)
    with opened(llm=llm, index=search, embedder=FakeEngine()) as acc:
        handle = run(acc)
        search.turns.release()
        assert llm.has_work.wait(PATIENCE_S)
        handle.cancel()
        search.turns.release()


def test_another_prompt_than_was_begun_is_computed() -> None:
    """A user's object may be read differently, however equal the documents are."""

    class Odd(str):
        __slots__ = ()

    search, llm = ScriptedSearch(found("a"), found("a")), WatchedLLM()
    with opened(llm=llm, index=search, embedder=FakeEngine()) as acc:
        handle = acc.submit(graph(), input=Odd("x"))
        search.turns.release(2)
        assert handle.result(PATIENCE_S) == reply(prompt("a"))
        assert [one.id for one in llm.asked if "speculated" in one.id] == []


def test_passes_switch_it_off() -> None:
    search, llm = ScriptedSearch(found("a"), found("a")), WatchedLLM()
    with opened(llm=llm, index=search, embedder=FakeEngine(), passes="none") as acc:
        handle = run(acc)
        search.turns.release(2)
        assert handle.result(PATIENCE_S) == reply(prompt("a"))
        assert not search.asked[0].provisional


def test_a_server_that_is_not_named_for_it_is_asked_once() -> None:
    search = ScriptedSearch(found("a"), found("b"))
    decoder = replace(FAKE_PROFILE, kinds=frozenset({PrimitiveKind.DECODING}), stepped=True)
    llm = FakeEngine(decoder)
    with opened(llm=llm, index=search, embedder=FakeEngine()) as acc:
        handle = run(acc)
        search.turns.release(2)
        assert handle.result(PATIENCE_S) == reply(prompt("b"))
        assert sum(len(batch) for batch in llm.served) == 1


def test_progress_without_a_result_is_no_provisional_result(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Alive(ScriptedSearch):
        def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
            outputs = super().step(budget)
            return [replace(one, value=None) if one.kind == "progress" else one for one in outputs]

    search, llm = Alive(found("a"), found("a")), WatchedLLM()
    search.turns.release(2)
    with opened(llm=llm, index=search, embedder=FakeEngine()) as acc:
        assert run(acc).result(PATIENCE_S) == reply(prompt("a"))
        assert counts(acc) == {}
    assert not caplog.records


class InlineDriver:
    """A driver whose ``post`` ends the request at once, as where its thread has the turn."""

    def __init__(self) -> None:
        self.speculations: Speculations | None = None
        self.posted: list[object] = []

    def now(self) -> float:
        return 0.0

    def submit(self, event: object, client: SpeculatedAnswer) -> None:
        client.has_begun = True

    def post(self, event: object) -> None:
        self.posted.append(event)
        assert self.speculations is not None
        self.speculations.close()


@pytest.mark.parametrize("by", ["revise", "ended", "take", "close"])
def test_an_answer_is_dropped_where_its_request_ends_meanwhile(by: str) -> None:
    driver: Any = InlineDriver()
    primitives = {one.name: one for one in lowered().primitives}
    search, generation = primitives["search.searching"], primitives["answer.decoding"]
    values = Values(graph().freeze(), {"input": "x"})
    made = Speculations(driver, RequestId(1), values, lambda what, stage, amount=1: None)
    driver.speculations = made
    record = SpeculationRecord()
    made.expect([SpeculatedPair(search.name, generation.name, EngineName("llm"), record)])
    made.asks(search.name)

    def build(node: NodeKey, primitive: Any, values: Any) -> EngineRequest:
        return EngineRequest(WorkId(node.node), "1", PrimitiveKind.DECODING, values.read("docs"))

    def revise(*texts: str) -> None:
        told = Provisional(found(*texts), 0.5, 0.0, 1.0)
        made.revise(search.name, told, cast("Any", primitives), build)

    revise("a")
    steps: dict[str, Callable[[], object]] = {
        "revise": lambda: revise("b"),
        "ended": lambda: made.ended(search.name, found("b"), "search"),
        "take": lambda: made.take(
            generation.name, EngineRequest(WorkId("x"), "1", PrimitiveKind.DECODING, found("c")), ""
        ),
        "close": made.close,
    }
    thread = threading.Thread(target=steps[by], daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "it waits for its own lock"
    assert len(driver.posted) == 1


def lowered() -> PrimitiveGraph:
    """Return the primitives of the graph, joined as its passes join them."""
    engines = {"index": ScriptedSearch.profile, "embedder": FAKE_PROFILE, "llm": FAKE_PROFILE}
    grown = grow(graph().freeze(), [START], (), 1)
    return run_passes(decompose(grown, engines), PassContext(engines)).graph


def reranked() -> RAGraph:
    made = RAGraph(["input"])
    made.add_retrieval("search", top_k=32, output="many")
    made.add_rerank("best", documents="many", query="input", top_n=1, output="docs")
    made.add_generation("answer", prompt="Read {docs}. {input}")
    return made.add_edge(START, "search").add_edge("search", "best").add_edge("best", "answer")


class WatchedPairs:
    """A scorer that prefers a text, and whose later calls wait until the LLM has work."""

    def __init__(self, best: str, llm: WatchedLLM) -> None:
        self._best, self._llm = f"text {best}", llm
        self.sizes: list[int] = []

    def __call__(self, pairs: list[tuple[str, str]]) -> list[float]:
        if self.sizes:
            assert self._llm.has_work.wait(PATIENCE_S)
        self.sizes.append(len(pairs))
        return [float(text == self._best) for _, text in pairs]


@pytest.mark.parametrize(("best", "expected"), [("3", {"hits": 1}), ("29", {"misses": 1})])
def test_an_answer_begins_with_what_is_best_among_the_first_pairs(
    best: str, expected: dict[str, int]
) -> None:
    llm = WatchedLLM()
    scorer = WatchedPairs(best, llm)
    reranker = RerankEngine(scorer, pure=True, max_threads=0)
    search = ScriptedSearch(found(*map(str, range(32))))
    search.turns.release()
    with opened(llm=llm, index=search, embedder=FakeEngine(), reranker=reranker) as acc:
        made = reranked().add_edge("answer", END)
        assert run(acc, made).result(PATIENCE_S) == reply(prompt(best))
        assert counts(acc) == expected
        assert scorer.sizes == [8, 8, 8, 8]
