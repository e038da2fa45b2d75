"""The engine that moves to a helper process: when, with which results, and what if that dies."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from rag_accel.engine_api import (
    EngineOutput,
    EngineRequest,
    PrimitiveKind,
    StepBudget,
    TextBatch,
    WorkId,
)
from rag_accel.engines.embedding.callable_engine import CallableEmbeddingEngine
from rag_accel.engines.embedding.helper_process import Answer
from rag_accel.engines.embedding.loading import load_model
from rag_accel.engines.embedding.offloaded import (
    CALM,
    OffloadedEmbeddingEngine,
    offloaded_sentence_transformer,
)
from rag_accel.testing.conformance import EngineContract


def _vectors(texts: Sequence[str]) -> Any:
    return np.array([[len(text), sum(map(ord, text)) % 97, 1.0] for text in texts], np.float32)


class _FakeHelper:
    """Answer as the model would, or fail as told."""

    def __init__(self, *, ready: bool = True, refuses: str = "", dies: bool = False) -> None:
        self.is_ready = ready
        self.refuses = refuses
        self.dies = dies
        self.asked: list[int] = []
        self.closed = False
        self._works: list[EngineRequest] = []
        self._woken = threading.Event()

    def send(self, works: Sequence[EngineRequest]) -> None:
        self.asked.append(len(works))
        self._works += works

    def cancel(self, ids: Sequence[WorkId]) -> None:
        self._works = [one for one in self._works if one.id not in ids]

    def wait(self, timeout_s: float) -> Answer | None:
        if self.dies:
            raise EOFError("gone")
        if not self._works:
            self._woken.wait(timeout_s)
            return None
        works, self._works = self._works, []
        failed = [one.id for one in works if self.refuses in one.payload.texts]
        good = {one.id: _vectors(one.payload.texts) for one in works if one.id not in failed}
        return Answer(good, tuple(failed))

    def interrupt(self) -> None:
        self._woken.set()

    def fail(self) -> None:
        self.is_ready = False

    def close(self) -> None:
        self.closed = True


def _engine(helper: _FakeHelper, crowd: int = 1) -> OffloadedEmbeddingEngine:
    local = CallableEmbeddingEngine(_vectors, pure=True)
    return OffloadedEmbeddingEngine(local, lambda: helper, crowd=crowd)  # type: ignore[arg-type]


def _work(name: str, *texts: Any) -> EngineRequest:
    batch = TextBatch(texts, "query")
    return EngineRequest(WorkId(name), "r", PrimitiveKind.EMBEDDING, batch)


def _finish(engine: OffloadedEmbeddingEngine, works: list[EngineRequest]) -> dict[str, Any]:
    engine.submit(works)
    ended: dict[str, EngineOutput] = {}
    for _ in range(20):
        ended.update({str(one.id): one for one in engine.step(StepBudget(None, 1))})
        if len(ended) == len(works):
            return ended
    raise AssertionError(f"only {sorted(ended)} ended")


def test_no_helper_is_started_while_few_callers_wait() -> None:
    helper = _FakeHelper()
    _finish(_engine(helper, crowd=3), [_work("a", "x"), _work("b", "y")])
    assert helper.asked == []


def test_a_crowd_is_embedded_by_the_helper() -> None:
    helper = _FakeHelper()
    ended = _finish(_engine(helper, crowd=3), [_work(str(i), "t" * i) for i in range(1, 6)])
    assert helper.asked == [5]
    assert np.array_equal(ended["3"].value, _vectors(["ttt"]))


def test_the_engine_computes_here_until_the_helper_is_ready() -> None:
    helper = _FakeHelper(ready=False)
    engine = _engine(helper)
    assert _finish(engine, [_work("a", "x")])["a"].kind == "final"
    helper.is_ready = True
    _finish(engine, [_work("b", "y")])
    assert helper.asked == [1]


def test_a_helper_that_dies_costs_nobody_a_result() -> None:
    helper = _FakeHelper(dies=True)
    ended = _finish(_engine(helper), [_work("a", "x"), _work("b", "yy")])
    assert np.array_equal(ended["b"].value, _vectors(["yy"]))


def test_work_that_fails_in_the_helper_is_computed_here() -> None:
    helper = _FakeHelper(refuses="bad")
    ended = _finish(_engine(helper), [_work("a", "good"), _work("b", "bad")])
    assert {name: one.kind for name, one in ended.items()} == {"a": "final", "b": "final"}


def test_what_is_no_text_never_reaches_the_helper() -> None:
    helper = _FakeHelper()
    ended = _finish(_engine(helper), [_work("a", 7), _work("b", "fine")])
    assert (ended["a"].kind, ended["b"].kind) == ("error", "final")
    assert helper.asked == [1]


def test_what_is_taken_back_from_the_helper_is_not_reported() -> None:
    helper = _FakeHelper()
    engine = _engine(helper)
    engine.submit([_work("a", "x"), _work("b", "y")])
    engine.cancel([WorkId("a")])
    assert [one.id for one in engine.step(StepBudget(None, 1))] == ["b"]


def test_a_step_that_waits_for_the_helper_can_be_interrupted() -> None:
    helper = _FakeHelper()
    engine = _engine(helper)
    engine.submit([_work("a", "x")])
    helper.cancel([WorkId("a")])  # the helper is busy with it and says nothing
    engine.interrupt()
    assert engine.step(StepBudget(60.0, 1)) == ()


def test_a_caller_who_stays_alone_is_served_here_again() -> None:
    helper = _FakeHelper()
    engine = _engine(helper)
    for number in range(2 * CALM):
        _finish(engine, [_work(str(number), "x")])
    assert sum(helper.asked) < CALM
    _finish(engine, [_work("a", "x"), _work("b", "y")])
    assert helper.asked[-1] == 2


def test_closing_stops_the_helper() -> None:
    helper = _FakeHelper()
    engine = _engine(helper)
    _finish(engine, [_work("a", "x")])
    engine.close()
    assert helper.closed


class TestContract(EngineContract):
    """Run the seam's rules with a helper that is always ready."""

    def make_engine(self) -> Any:
        return _engine(_FakeHelper())

    def make_request(self, i: int) -> EngineRequest:
        return _work(f"work{i}", f"text number {i}")


@pytest.fixture(scope="module")
def mini_lm() -> Any:
    return load_model(None)


@pytest.fixture(scope="module")
def offloaded(mini_lm: Any) -> Any:
    kwargs = {"normalize_embeddings": True}
    engine = offloaded_sentence_transformer(mini_lm, kwargs, kwargs, crowd=1)
    yield engine
    engine.close()


def test_a_real_helper_gives_the_models_vectors_and_leaves_with_its_engine(
    offloaded: Any, mini_lm: Any
) -> None:
    texts = [f"what does function {i} do" + " really" * (i % 5) for i in range(20)]
    _finish(offloaded, [_work("start", "x")])
    helper = offloaded._helper
    helper._thread.join(60)
    assert helper.is_ready
    ended = _finish(offloaded, [_work(str(i), text) for i, text in enumerate(texts)])
    expected = mini_lm.encode(texts, normalize_embeddings=True, show_progress_bar=False)
    found = np.concatenate([ended[str(i)].value for i in range(len(texts))])
    assert np.abs(found - expected).max() <= 1e-6
    process = helper._process
    offloaded.close()
    assert process.poll() is not None


def test_no_helper_is_made_where_it_is_not_allowed(mini_lm: Any) -> None:
    before = threading.active_count()
    engine = offloaded_sentence_transformer(mini_lm, {}, {}, allowed=False)
    engine.submit([_work(str(i), "x") for i in range(20)])
    engine.step(StepBudget(None, 1))
    assert threading.active_count() == before
