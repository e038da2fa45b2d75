"""Every scripted fault happens, and only to whom it is scripted for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from rag_accel.engine_api import (
    EngineRequest,
    GenerationInput,
    Message,
    PrimitiveKind,
    SearchQuery,
    StepBudget,
    TextBatch,
    WorkId,
)
from rag_accel.errors import EngineError, EngineLostError
from rag_accel.testing import FAKE_PROFILE, FakeEngine, Faults, vector_of
from rag_accel.testing.faults import ItemFault

BUDGET = StepBudget(threads=2)


def embed(name: str, *texts: str) -> EngineRequest:
    payload = TextBatch(texts or (name,))
    return EngineRequest(WorkId(name), "r", PrimitiveKind.EMBEDDING, payload, size=len(texts) or 1)


def generate(name: str) -> EngineRequest:
    payload = GenerationInput((Message("user", f"tell me of {name}"),))
    return EngineRequest(WorkId(name), "r", PrimitiveKind.DECODING, payload, stream=True)


def only(name: str, fault: ItemFault) -> Callable[[EngineRequest], ItemFault | None]:
    return lambda request: fault if request.id == name else None


def test_a_scripted_submit_error_is_raised_by_submit() -> None:
    error = RuntimeError("scripted")
    with pytest.raises(RuntimeError) as caught:
        FakeEngine(faults=Faults(submit_error=error)).submit([embed("a")])
    assert caught.value is error


def test_an_item_that_raises_loses_the_whole_step_and_its_members_can_come_back() -> None:
    engine = FakeEngine(faults=Faults(item=only("bad", "raise")))
    engine.submit([embed("good"), embed("bad")])
    with pytest.raises(EngineError, match="bad"):
        engine.step(BUDGET)
    engine.submit([embed("good")])
    assert [output.kind for output in engine.step(BUDGET)] == ["final"]


def test_every_nth_step_with_work_raises() -> None:
    engine, fates = FakeEngine(faults=Faults(every_nth_step=2)), []
    for name in "abcd":
        engine.submit([embed(name)])
        try:
            fates.append(engine.step(BUDGET)[0].kind)
        except EngineError:
            fates.append("raised")
        engine.step(BUDGET)
    assert fates == ["final", "raised", "final", "raised"]


def test_a_scripted_exception_reaches_the_output_as_the_same_object() -> None:
    error = ValueError("the user's own")
    engine = FakeEngine(faults=Faults(item=only("bad", error)))
    engine.submit([embed("good"), embed("bad")])
    good, bad = engine.step(BUDGET)
    assert (good.kind, bad.kind) == ("final", "error")
    assert bad.error is error


def test_an_item_scripted_to_fail_ends_with_an_error_output() -> None:
    engine = FakeEngine(faults=Faults(item=only("bad", "error")))
    engine.submit([embed("bad")])
    (output,) = engine.step(BUDGET)
    assert isinstance(output.error, EngineError)


def test_a_silent_item_never_reports() -> None:
    engine = FakeEngine(faults=Faults(item=only("bad", "silent")))
    engine.submit([embed("bad"), embed("good")])
    assert [output.id for output in engine.step(BUDGET)] == ["good"]
    assert engine.step(BUDGET) == []


def test_a_nan_item_has_nan_in_place_of_numbers() -> None:
    engine = FakeEngine(faults=Faults(item=lambda request: "nan"))
    search = EngineRequest(
        WorkId("s"), "r", PrimitiveKind.SEARCHING, SearchQuery(vector_of("q"), k=2)
    )
    engine.submit([embed("a"), search, generate("g")])
    finals = {output.id: output.value for output in engine.step(BUDGET) if output.kind == "final"}
    assert np.isnan(finals[WorkId("a")]).all()
    assert all(np.isnan(hit.score) for hit in finals[WorkId("s")])
    assert finals[WorkId("g")].text == "reply to: tell me of g"


def test_a_short_item_lacks_one_vector_or_letter() -> None:
    engine = FakeEngine(faults=Faults(item=lambda request: "short"))
    engine.submit([embed("a", "x", "y"), replace(generate("g"), stream=False)])
    vectors, text = (output.value for output in engine.step(BUDGET))
    assert vectors.shape == (1, 8)
    assert text.text == "reply to: tell me of "


def test_a_dead_engine_raises_from_then_on_but_can_be_closed() -> None:
    engine = FakeEngine(faults=Faults(dies_at_step=2))
    engine.submit([embed("a")])
    engine.step(BUDGET)
    engine.submit([embed("b")])
    with pytest.raises(EngineLostError):
        engine.step(BUDGET)
    with pytest.raises(EngineLostError):
        engine.submit([embed("b")])
    engine.cancel([WorkId("b")])
    engine.close()


def test_a_hanging_step_goes_on_when_released() -> None:
    release = threading.Event()
    engine = FakeEngine(faults=Faults(hang=release))
    engine.submit([embed("a")])
    ended: list[str] = []
    thread = threading.Thread(
        target=lambda: ended.extend(output.kind for output in engine.step(BUDGET))
    )
    thread.start()
    engine.interrupt()
    thread.join(0.05)
    assert thread.is_alive(), "an engine that is not interruptible ignores interrupts"
    release.set()
    thread.join(5.0)
    assert ended == ["final"]


def test_an_interruptible_hanging_step_returns_with_its_work_still_held() -> None:
    release = threading.Event()
    engine = FakeEngine(replace(FAKE_PROFILE, interruptible=True), faults=Faults(hang=release))
    engine.submit([embed("a")])
    engine.interrupt()
    assert engine.step(BUDGET) == []
    release.set()
    assert [output.kind for output in engine.step(BUDGET)] == ["final"]
