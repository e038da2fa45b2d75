"""A device group as an engine: works cut over members, what ends, fails, is lost and is freed."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from fake_members import FakeMember, plain_vectors

from rag_accel.engine_api import EngineRequest, PrimitiveKind, StepBudget, TextBatch, WorkId
from rag_accel.engines.devices.group import DeviceGroup
from rag_accel.engines.devices.placement import Placement
from rag_accel.errors import ClosedError, EngineError, EngineLostError, EngineOutputError
from rag_accel.testing import EngineContract

WAIT = StepBudget(10.0)


def request(id: str, *texts: str, **more: Any) -> EngineRequest:
    payload = TextBatch(texts or (f"text {id}",))
    return EngineRequest(WorkId(id), "r", PrimitiveKind.EMBEDDING, payload, size=1, **more)


@contextmanager
def group(*members: FakeMember, **more: Any) -> Iterator[DeviceGroup]:
    made = DeviceGroup(members, **more)
    for member in members:
        member.calls.clear()
        member.threads.clear()
        member.is_asked.clear()
    try:
        yield made
    finally:
        for member in members:
            member.may_go.set()
        made.close()


def outcomes(engine: DeviceGroup, count: int) -> dict[str, Any]:
    """Step until ``count`` works have ended; return their values or errors."""
    ended: dict[str, Any] = {}
    for _ in range(1000):
        if len(ended) == count:
            return ended
        for output in engine.step(WAIT):
            ended[output.id] = output.value if output.kind == "final" else output.error
    raise AssertionError(f"only {sorted(ended)} ended")


class TestGroupOfTwo(EngineContract):
    def make_engine(self) -> DeviceGroup:
        return DeviceGroup([FakeMember("a"), FakeMember("b", max_threads=1)])

    def make_request(self, number: int) -> EngineRequest:
        return request(f"w{number}", f"text {number}")

    def make_bad_request(self) -> EngineRequest:
        return request("bad", 3)  # type: ignore[arg-type]


def test_a_work_of_a_thousand_texts_is_computed_by_all_members_and_comes_back_in_order() -> None:
    texts = [f"{number} " + "word " * (number % 50) for number in range(1000)]
    first, second = FakeMember("first"), FakeMember("second")
    with group(first, second) as engine:
        first.may_go.clear()
        second.may_go.clear()
        engine.submit([request("bulk", *texts)])
        assert first.is_asked.wait(10)
        assert second.is_asked.wait(10)
        first.may_go.set()
        second.may_go.set()
        found = outcomes(engine, 1)["bulk"]
    np.testing.assert_array_equal(found, plain_vectors(texts, "query"))
    assert found.dtype == np.float32


def test_the_plan_of_all_members_is_made_twice_for_one_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once to tell whether it will be late, and once to place it."""
    made: list[str] = []

    def counting(name: str) -> None:
        plain = getattr(Placement, name)

        def plans(*args: Any) -> Any:
            made.append(name)
            return plain(*args)

        monkeypatch.setattr(Placement, name, plans)

    counting("_plans")
    counting("_lanes")
    with group(FakeMember("a"), FakeMember("b"), slo_s=5.0) as engine:
        engine.submit([request("one")])
        outcomes(engine, 1)
    assert made == ["_lanes", "_plans"]


def test_queries_and_documents_of_one_step_keep_their_roles() -> None:
    def by_role(texts: Sequence[str], role: str) -> Any:
        return plain_vectors([f"{role}: {text}" for text in texts], role)

    member = FakeMember("only", vectors=by_role)
    with group(member) as engine:
        work_items = [
            EngineRequest(WorkId(work.role), "r", PrimitiveKind.EMBEDDING, work)
            for work in (TextBatch(("x",), "query"), TextBatch(("x",), "document"))
        ]
        engine.submit(work_items)
        found = outcomes(engine, 2)
    for role in ("query", "document"):
        np.testing.assert_array_equal(found[role], by_role(["x"], role))


def test_no_texts_give_no_vectors_of_the_right_dimension() -> None:
    with group(FakeMember()) as engine:
        work = EngineRequest(WorkId("w"), "r", PrimitiveKind.EMBEDDING, TextBatch(()))
        engine.submit([work])
        assert outcomes(engine, 1)["w"].shape == (0, plain_vectors(["x"], "query").shape[1])


# What goes wrong.


def test_a_text_that_no_member_embeds_fails_its_work_alone() -> None:
    def picky(texts: Sequence[str], role: str) -> Any:
        if "bad" in texts:
            raise ValueError("bad text")
        return plain_vectors(texts, role)

    members = [FakeMember("first", vectors=picky), FakeMember("second", vectors=picky)]
    with group(*members) as engine:
        engine.submit([request("good", "a"), request("evil", "bad"), request("also", "b")])
        found = outcomes(engine, 3)
    assert str(found["evil"]) == "bad text"
    np.testing.assert_array_equal(found["good"], plain_vectors(["a"], "query"))
    np.testing.assert_array_equal(found["also"], plain_vectors(["b"], "query"))


@pytest.mark.parametrize("count", [1, 2])
def test_bad_texts_in_a_row_drive_no_sound_member_out(count: int) -> None:
    def picky(texts: Sequence[str], role: str) -> Any:
        if any("bad" in text for text in texts):
            raise ValueError("bad text")
        return plain_vectors(texts, role)

    members = [FakeMember(f"m{number}", vectors=picky) for number in range(count)]
    with group(*members) as engine:
        for number in range(10):
            engine.submit([request(f"w{number}", f"bad {number}")])
            assert isinstance(outcomes(engine, 1)[f"w{number}"], ValueError)
        engine.submit([request("good")])
        assert len(outcomes(engine, 1)["good"]) == 1


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (lambda texts: plain_vectors(texts, "query")[:-1], "wrong number of vectors"),
        (lambda texts: plain_vectors(texts, "query")[:, :-1], "wrong dimension"),
        (lambda texts: plain_vectors(texts, "query") * np.nan, "not finite"),
        (lambda texts: plain_vectors(texts, "query") * 0 + np.float32(3e38), "not finite"),
    ],
)
def test_bad_vectors_are_an_error_of_the_step(bad: Any, message: str) -> None:
    is_bad = threading.Event()

    def vectors(texts: Sequence[str], role: str) -> Any:
        return bad(texts) if is_bad.is_set() else plain_vectors(texts, role)

    with group(FakeMember(vectors=vectors)) as engine:
        is_bad.set()
        engine.submit([request("w", "a", "b")])
        error = outcomes(engine, 1)["w"]
    assert isinstance(error, EngineOutputError)
    assert message in str(error)


def test_without_any_member_left_work_ends_with_an_error_that_says_so() -> None:
    member = FakeMember("only")
    with group(member) as engine:
        member.error = EngineLostError("cable pulled")
        engine.submit([request("w"), request("v")])
        outcomes(engine, 2)
        engine.submit([request("later")])
        error = outcomes(engine, 1)["later"]
    assert isinstance(error, EngineLostError)
    assert "no member of the device group is left" in str(error)
    assert "cable pulled" in str(error)


def test_an_id_in_use_is_refused() -> None:
    member = FakeMember("only")
    with group(member) as engine:
        member.may_go.clear()
        engine.submit([request("w"), request("w")])
        (output,) = engine.step(StepBudget(0.0))
        assert isinstance(output.error, EngineError)


# What is freed.


def test_cancelled_work_frees_its_texts_and_reports_nothing() -> None:
    class Text(str):
        __slots__ = ("__weakref__",)

    member = FakeMember("only", max_texts=1)
    with group(member) as engine:
        member.may_go.clear()
        engine.submit([request("running")])
        assert member.is_asked.wait(10)
        text = Text("queued text")
        is_alive = weakref.ref(text)
        engine.submit([request("queued", text)])
        del text
        engine.cancel([WorkId("queued"), WorkId("running")])
        member.may_go.set()
        engine.submit([request("other")])
        assert list(outcomes(engine, 1)) == ["other"]
        gc.collect()
        assert is_alive() is None
        assert not engine._jobs


def test_closing_ends_the_threads_and_closes_the_members() -> None:
    members = [FakeMember("first"), FakeMember("second")]
    before = set(threading.enumerate())
    with group(*members) as engine:
        engine.submit([request("bulk", *(f"{number}" for number in range(500)))])
        outcomes(engine, 1)
    assert set(threading.enumerate()) <= before
    assert [member.is_closed for member in members] == [True, True]
    with pytest.raises(ClosedError):
        engine.submit([request("late")])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_is_told_and_closes_nothing() -> None:
    member = FakeMember("only")
    with group(member) as engine:
        engine.submit([request("w")])
        outcomes(engine, 1)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                engine.close()
                engine.submit([request("v")])
            except Exception as error:
                status = 0 if type(error).__name__ == "ForkedError" else 2
            finally:
                os._exit(status if not member.is_closed else 3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_steps_are_counted_by_member() -> None:
    with group(FakeMember("only")) as engine:
        engine.submit([request("w", "one two", "three")])
        outcomes(engine, 1)
        counts = engine.counts
    assert counts["only_steps"] == 1
    assert counts["only_texts"] == 2
    assert counts["only_tokens"] == 3
