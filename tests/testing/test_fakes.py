"""The fake engine does what its script says, faults included, and records what was done to it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from rag_accel.engine_api import (
    EngineRequest,
    GenerationInput,
    Handle,
    LatencyModel,
    Message,
    PrimitiveKind,
    SearchQuery,
    StepBudget,
    TextBatch,
    WorkId,
)
from rag_accel.errors import ClosedError, ConfigError, EngineError, EngineLostError
from rag_accel.testing import FAKE_PROFILE, FakeEngine, Faults, compute, vector_of
from rag_accel.testing.faults import ItemFault

BUDGET = StepBudget(threads=2)


def embed(name: str, *texts: str) -> EngineRequest:
    payload = TextBatch(texts or (name,))
    return EngineRequest(WorkId(name), "r", PrimitiveKind.EMBEDDING, payload, size=len(texts) or 1)


def generate(name: str) -> EngineRequest:
    payload = GenerationInput((Message("user", f"tell me of {name}"),))
    return EngineRequest(WorkId(name), "r", PrimitiveKind.DECODING, payload, stream=True)


def test_all_submitted_work_ends_in_one_step_with_its_computed_value() -> None:
    engine, work = FakeEngine(), [embed("a"), embed("b", "x", "y")]
    engine.submit(work)
    outputs = engine.step(BUDGET)
    assert [(output.id, output.kind) for output in outputs] == [("a", "final"), ("b", "final")]
    np.testing.assert_array_equal(outputs[1].value, compute(work[1].payload))
    assert engine.step(BUDGET) == []


def test_batches_granted_threads_and_calling_threads_are_recorded() -> None:
    engine = FakeEngine()
    engine.submit([embed("a"), embed("b")])
    engine.step(BUDGET)
    engine.step(BUDGET)
    engine.submit([embed("c")])
    engine.step(StepBudget(threads=1))
    assert engine.batches == [("a", "b"), ("c",)]
    assert engine.threads_granted == [2, 1]
    assert engine.thread_ids == {threading.get_ident()}
    assert engine.served[0] == (embed("a"), embed("b"))
    assert [call.method for call in engine.calls] == ["submit", "step", "step", "submit", "step"]


def test_interrupts_and_hints_come_from_other_threads_and_do_not_count_as_callers() -> None:
    engine = FakeEngine()
    engine.cancel([])
    for call in (engine.interrupt, lambda: engine.hint(["doc"], "tenant")):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    assert engine.thread_ids == {threading.get_ident()}
    assert [call.method for call in engine.calls] == ["cancel", "interrupt", "hint"]


def test_the_waiter_gets_the_scripted_seconds_and_then_the_models() -> None:
    waited: list[float] = []
    profile = replace(FAKE_PROFILE, latency=LatencyModel(1.0, 0.5))
    engine = FakeEngine(profile, durations_s=[0.25], wait=waited.append)
    for name in ("a", "b"):
        engine.submit([embed(name, "x", "y")])
        engine.step(BUDGET)
    assert waited == [0.25, 2.0]


def test_stepped_work_reports_progress_with_handles_and_ends_in_its_last_step() -> None:
    engine = FakeEngine(steps=3)
    assert engine.profile.stepped
    engine.submit([embed("a")])
    kinds = [[output.kind for output in engine.step(BUDGET)] for _ in range(4)]
    assert kinds == [["progress"], ["progress"], ["final"], []]
    assert len(engine.live_handles) == 2


def test_new_work_joins_a_stepped_engine_at_a_step_border() -> None:
    engine = FakeEngine(steps=2)
    engine.submit([embed("a")])
    engine.step(BUDGET)
    engine.submit([embed("b")])
    engine.step(BUDGET)
    engine.step(BUDGET)
    assert engine.batches == [("a",), ("a", "b"), ("b",)]


def test_work_resumes_from_any_handle_not_yet_released() -> None:
    engine = FakeEngine(steps=3)
    engine.submit([embed("a")])
    (first,), (second,) = engine.step(BUDGET), engine.step(BUDGET)
    engine.cancel([WorkId("a")])
    engine.submit(
        [replace(embed("late"), handle=second.handle), replace(embed("early"), handle=first.handle)]
    )
    assert [output.id for output in engine.step(BUDGET) if output.kind == "final"] == ["late"]
    assert [output.id for output in engine.step(BUDGET) if output.kind == "final"] == ["early"]


@pytest.mark.parametrize("namespace", ["", "other tenant"])
def test_a_released_or_foreign_handle_is_an_error_of_that_item(namespace: str) -> None:
    engine = FakeEngine(steps=2)
    engine.submit([embed("a")])
    (progress,) = engine.step(BUDGET)
    assert progress.handle is not None
    if not namespace:
        engine.release([progress.handle, progress.handle, Handle("unknown")])
    engine.submit([replace(embed("b"), handle=progress.handle, namespace=namespace), embed("c")])
    outputs = {output.id: output for output in engine.step(BUDGET)}
    assert isinstance(outputs[WorkId("b")].error, EngineError)
    assert outputs[WorkId("c")].kind == "progress"


@pytest.mark.parametrize("steps", [1, 3])
def test_streamed_pieces_make_up_the_text(steps: int) -> None:
    engine = FakeEngine(steps=steps)
    engine.submit([generate("a")])
    outputs = [output for _ in range(steps) for output in engine.step(BUDGET)]
    pieces = [output.value for output in outputs if output.kind == "partial"]
    assert len(pieces) == steps
    assert "".join(pieces) == outputs[-1].value.text == "reply to: tell me of a"


def test_a_kind_the_profile_lacks_is_an_error_of_that_item() -> None:
    engine = FakeEngine(replace(FAKE_PROFILE, kinds=frozenset({PrimitiveKind.EMBEDDING})))
    engine.submit([generate("bad"), embed("good")])
    assert {output.id: output.kind for output in engine.step(BUDGET)} == {
        "bad": "error",
        "good": "final",
    }


def test_a_payload_that_cannot_be_computed_is_an_error_of_that_item() -> None:
    engine = FakeEngine()
    broken = replace(embed("bad"), payload=TextBatch((3,)))  # type: ignore[arg-type]
    engine.submit([broken, embed("good")])
    outputs = {output.id: output for output in engine.step(BUDGET)}
    assert isinstance(outputs[WorkId("bad")].error, AttributeError)
    assert outputs[WorkId("good")].kind == "final"


def test_cancelled_work_never_reports() -> None:
    engine = FakeEngine()
    engine.submit([embed("a"), embed("b"), replace(embed("bad"), handle=Handle("unknown"))])
    engine.cancel([WorkId("a"), WorkId("bad"), WorkId("unknown")])
    assert [output.id for output in engine.step(BUDGET)] == ["b"]


def test_unfinished_work_cannot_be_submitted_again() -> None:
    engine = FakeEngine()
    engine.submit([embed("a")])
    with pytest.raises(EngineError, match="submitted again"):
        engine.submit([embed("a")])


def test_a_closed_engine_holds_nothing_and_takes_nothing() -> None:
    engine = FakeEngine(steps=2)
    engine.submit([embed("a")])
    engine.step(BUDGET)
    engine.close()
    engine.close()
    assert engine.is_closed
    assert engine.live_handles == frozenset()
    with pytest.raises(ClosedError):
        engine.submit([embed("b")])


def test_an_engine_without_steps_is_refused() -> None:
    with pytest.raises(ConfigError, match="number of steps"):
        FakeEngine(steps=0)


# Faults -----------------------------------------------------------------------------------------


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
