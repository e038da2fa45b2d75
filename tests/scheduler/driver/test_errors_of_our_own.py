"""An internal error fails all that lives, is counted, and what comes next finds a fresh state."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
from driver_harness import EMBEDDING, PATIENCE_S, Gate, LeafCall, Rig, held_back, stepped_profile

from rag_accel.errors import RagAccelError, SchedulingError
from rag_accel.scheduler import completions, transitions
from rag_accel.scheduler.driver import handling
from rag_accel.scheduler.messages import (
    BorrowedEngineAdded,
    CallEnded,
    Closing,
    EngineLeft,
    LeafArrived,
    NodeCancelled,
    NodeKey,
    NodeSpec,
    OwnedEngineAdded,
    RequestArrived,
    RequestCancelled,
    RequestClosed,
    RequestOpened,
    StepEnded,
    Tick,
)
from rag_accel.testing import FakeEngine, Faults

Break = Callable[..., None]


@pytest.fixture
def break_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[Break]:
    """Let the core raise once at an event: before it looks at it, or when it is done with it."""

    def arm(kind: type, before: bool = True) -> None:
        armed = [True]

        def handle(state: Any, event: Any, now: float, *, more: bool = False) -> Any:
            hits = isinstance(event, kind) and armed[0]
            if hits and before:
                armed.clear()
                armed.append(False)
                raise ZeroDivisionError("a bug")
            commands = transitions.handle(state, event, now, more=more)
            if hits:
                armed[0] = False
                raise ZeroDivisionError("a bug")
            return commands

        monkeypatch.setattr(handling, "handle", handle)

    return arm


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "rag_accel.scheduler")


def fails_with_the_bug(call: LeafCall) -> None:
    with pytest.raises(SchedulingError, match="a bug") as caught:
        call.value()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def everything_works(rig: Rig) -> None:
    """Fail unless calls of both engines and a request end as they should, and nothing lives on."""
    rig.leaf("next").value()
    call = rig.leaf(engine="b")
    assert call.may_run.wait(PATIENCE_S)
    rig.end_call(call)
    assert call.outcome == "done"
    request = rig.graph(NodeSpec("n", rig.e, EMBEDDING))
    assert request.over.wait(PATIENCE_S)
    rig.become_idle()
    assert request.request_outcome == "done"


@pytest.mark.parametrize("before", [True, False])
def test_on_an_arriving_leaf_all_that_lives_fails(break_once: Break, before: bool) -> None:
    with Rig(max_concurrency=1) as rig:
        runs, waits = rig.leaf(engine="b"), rig.leaf(engine="b")
        assert runs.may_run.wait(PATIENCE_S)
        break_once(LeafArrived, before)
        fails_with_the_bug(rig.leaf("broken"))
        fails_with_the_bug(waits)
        rig.end_call(runs)
        everything_works(rig)
        assert rig.driver.internal_errors == 1


@pytest.mark.parametrize("before", [True, False])
def test_on_an_arriving_request_that_request_fails(break_once: Break, before: bool) -> None:
    with Rig() as rig:
        break_once(RequestArrived, before)
        broken = rig.graph(NodeSpec("n", rig.e, EMBEDDING))
        assert broken.over.wait(PATIENCE_S)
        rig.settle()
        assert broken.request_outcome == "failed"
        ((_, _, result, _),) = broken.ends
        assert result is not None
        assert isinstance(result.error, SchedulingError)
        everything_works(rig)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("stepped", [True, False])
def test_on_the_end_of_a_step_the_engine_goes_on(
    break_once: Break, before: bool, stepped: bool
) -> None:
    gate = Gate()
    engine = FakeEngine(stepped_profile() if stepped else FakeEngine().profile, compute=gate)
    with Rig(engine) as rig, held_back(gate):
        member = rig.leaf("member")
        gate.wait_until_entered()
        queued = rig.leaf("queued")
        rig.settle()
        break_once(StepEnded, before)
        gate.open()
        if before:  # else its end was decided, but it was lost with the rest
            fails_with_the_bug(queued)
        fails_with_the_bug(member)
        everything_works(rig)


@pytest.mark.parametrize("stepped", [True, False])
def test_a_step_that_runs_meanwhile_is_nothing_to_the_fresh_state(
    break_once: Break, stepped: bool
) -> None:
    gate = Gate()
    engine = FakeEngine(stepped_profile() if stepped else FakeEngine().profile, compute=gate)
    with Rig(engine) as rig, held_back(gate):
        member, request = rig.leaf("member"), rig.graph(NodeSpec("n", rig.e, EMBEDDING))
        gate.wait_until_entered()
        break_once(Tick)
        rig.driver.post(Tick())
        fails_with_the_bug(member)
        assert request.over.wait(PATIENCE_S)
        after = rig.leaf("after")
        rig.settle()
        assert not after.over.is_set()
        gate.open()
        after.value()
        everything_works(rig)
        assert rig.driver.internal_errors == 1


@pytest.mark.parametrize("before", [True, False])
def test_on_the_end_of_a_call_the_permit_is_given_back(break_once: Break, before: bool) -> None:
    with Rig(max_concurrency=1) as rig:
        call, waiting = rig.leaf(engine="b"), rig.leaf(engine="b")
        assert call.may_run.wait(PATIENCE_S)
        break_once(CallEnded, before)
        rig.end_call(call)
        fails_with_the_bug(waiting)
        everything_works(rig)


def test_a_call_that_runs_meanwhile_keeps_its_permit(break_once: Break) -> None:
    with Rig(max_concurrency=1) as rig:
        running = rig.leaf(engine="b")
        assert running.may_run.wait(PATIENCE_S)
        break_once(Tick)
        rig.driver.post(Tick())
        waiting = rig.leaf(engine="b")
        rig.settle()
        assert not waiting.may_run.is_set()
        rig.end_call(running)
        assert waiting.may_run.wait(PATIENCE_S)
        rig.end_call(waiting)
        everything_works(rig)


@pytest.mark.parametrize("kind", [NodeCancelled, RequestCancelled, Tick])
@pytest.mark.parametrize("before", [True, False])
def test_on_a_cancellation_or_a_tick_the_next_request_works(
    break_once: Break, kind: type, before: bool
) -> None:
    gate = Gate()
    with Rig(FakeEngine(compute=gate)) as rig, held_back(gate):
        neighbour = rig.leaf("neighbour")
        gate.wait_until_entered()
        leaf, request = rig.leaf("leaf"), rig.graph(NodeSpec("n", rig.e, EMBEDDING))
        rig.settle()
        break_once(kind, before)
        rig.driver.post(NodeCancelled(leaf.key))
        rig.driver.post(RequestCancelled(request.id))
        rig.driver.post(Tick())
        assert leaf.over.wait(PATIENCE_S)
        assert request.over.wait(PATIENCE_S)
        fails_with_the_bug(neighbour)
        gate.open()
        everything_works(rig)
        assert rig.driver.internal_errors == 1


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("kind", [OwnedEngineAdded, BorrowedEngineAdded])
def test_an_engine_that_joins_meanwhile_has_joined(
    break_once: Break, kind: type, before: bool
) -> None:
    break_once(kind, before)
    with Rig() as rig:
        everything_works(rig)
        assert rig.driver.internal_errors == 1


@pytest.mark.parametrize("before", [True, False])
def test_an_engine_that_leaves_meanwhile_is_closed(break_once: Break, before: bool) -> None:
    engine = FakeEngine()
    with Rig() as rig:
        name = rig.driver.add_engine("leaving", engine)
        rig.settle()
        worker = rig.driver._handler.workers[name].thread  # pyright: ignore[reportPrivateUsage]
        break_once(EngineLeft, before)
        rig.driver.post(EngineLeft(name))
        worker.join(PATIENCE_S)
        assert not worker.is_alive()
        everything_works(rig)


def test_on_the_end_of_a_program_nothing_of_it_stays(break_once: Break) -> None:
    with Rig() as rig:
        rid = rig.driver.new_request()
        rig.driver.post(RequestOpened(rid, "program", 0.0))
        break_once(RequestClosed)
        rig.driver.post(RequestClosed(rid, rig.driver.now()))
        rig.become_idle()


def test_on_closing_everybody_is_told_all_the_same(break_once: Break) -> None:
    rig = Rig()
    call = rig.leaf(engine="b")
    request = rig.graph(NodeSpec("n", rig.b, EMBEDDING))
    assert call.may_run.wait(PATIENCE_S)
    break_once(Closing)
    assert rig.driver.close(PATIENCE_S)
    assert call.outcome == "closed"
    assert request.request_outcome == "closed"


def test_an_observer_that_raises_changes_nothing() -> None:
    class Broken:
        def observe(self, *args: Any) -> None:
            raise ZeroDivisionError("a bug")

    with Rig(observer=Broken()) as rig:
        rig.leaf().value()
        rig.become_idle()
        assert rig.driver.internal_errors > 0


def test_a_client_that_raises_does_not_keep_its_permit() -> None:
    class Raising(LeafCall):
        def granted(self, node: NodeKey) -> None:
            raise ZeroDivisionError("a bug")

    with Rig(max_concurrency=1) as rig:
        key = NodeKey(rig.driver.new_request(), "n")
        call = Raising(key, "text")
        rig.driver.submit(LeafArrived(key.request, NodeSpec("n", rig.b, EMBEDDING), 0.0), call)
        fails_with_the_bug(call)
        everything_works(rig)


def test_a_client_that_raises_at_the_end_does_not_keep_others_from_hearing() -> None:
    class Raising(LeafCall):
        def ended(self, node: NodeKey, *news: Any) -> None:
            raise ZeroDivisionError("a bug")

    with Rig(max_concurrency=1) as rig:
        holder = rig.leaf(engine="b")
        assert holder.may_run.wait(PATIENCE_S)
        key = NodeKey(rig.driver.new_request(), "n")
        spec = NodeSpec("n", rig.b, EMBEDDING)
        rig.driver.submit(LeafArrived(key.request, spec, 0.0), Raising(key, "text"))
        waiting = rig.leaf(engine="b")
        rig.driver.post(NodeCancelled(key))
        fails_with_the_bug(waiting)
        rig.end_call(holder)
        everything_works(rig)


def test_it_is_logged_with_what_it_failed_on(
    break_once: Break, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "rag_accel.scheduler")
    with Rig() as rig:
        break_once(LeafArrived)
        fails_with_the_bug(rig.leaf())
    assert "the scheduler failed on LeafArrived" in caplog.text
    assert "ZeroDivisionError: a bug" in caplog.text


@pytest.mark.parametrize("stepped", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_everybody_hears_of_the_end_when_the_core_breaks_off_anywhere(
    seed: int, stepped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Raise at random in the middle of the core's work, when half of an event is done."""
    rng = Random(seed)
    whole = completions._finish  # pyright: ignore[reportPrivateUsage]

    def finish(*args: Any) -> None:
        if rng.random() < 0.1:
            raise ZeroDivisionError("a bug")
        whole(*args)
        if rng.random() < 0.1:
            raise ZeroDivisionError("a bug")

    monkeypatch.setattr(completions, "_finish", finish)
    profile = stepped_profile() if stepped else FakeEngine().profile
    engine = FakeEngine(profile, faults=Faults(lambda request: _fault(request.payload.texts[0])))
    with Rig(engine, max_requests=50) as rig:
        leaves = [rig.leaf(str(n), share=n % 7 if n % 3 else None) for n in range(100)]
        graphs = [
            rig.graph(
                NodeSpec("a", rig.e, EMBEDDING),
                NodeSpec("b", rig.e, EMBEDDING),
                NodeSpec("c", rig.e, EMBEDDING, ("a", "b")),
            )
            for _ in range(30)
        ]
        for call in leaves[::9]:
            rig.driver.post(NodeCancelled(call.key))
        for leaf in leaves:
            try:
                leaf.value()
            except RagAccelError:
                continue
        for graph in graphs:
            assert graph.over.wait(PATIENCE_S)
        monkeypatch.undo()
        everything_works(rig)


def _fault(text: str) -> Any:
    return "raise" if text.endswith("3") else None
