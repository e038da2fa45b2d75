"""A primitive that failed has further attempts, then its stage's fallback, and harms nobody."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from core_harness import Core, key, spec

from rag_accel.scheduler.commands import (
    Command,
    EndNode,
    EndRequest,
    RetryNode,
    StartCall,
    StartFallback,
    StartStep,
)
from rag_accel.scheduler.messages import (
    CallEnded,
    EngineLeft,
    EngineName,
    Fallback,
    NodeReport,
    NodeSpec,
    StepEnded,
    StepFailed,
)
from rag_accel.scheduler.state import MOST_RETRIES

OTHER = spec("b", "f")


def flaky(name: str = "a", engine: str = "e", *after: str, **parts: Any) -> NodeSpec:
    """Describe a node with two further attempts, one and two seconds after it failed."""
    options = {key: parts.pop(key) for key in ("backoffs_s", "fallback") if key in parts}
    return replace(spec(name, engine, *after, **parts), **{"backoffs_s": (1.0, 2.0), **options})


def fail(core: Core, *names: str, at: float, least: float | None = 0.0) -> list[Command]:
    """Report errors of nodes of request 1."""
    engine = core.engine()
    assert engine.step is not None
    reports = tuple(NodeReport(key(1, name), "error", None, least) for name in names)
    return core.send(StepEnded(engine.name, engine.step, reports, 1.0), at)


def fail_call(core: Core, name: str, at: float, least: float | None = 0.0) -> list[Command]:
    event = CallEnded(key(1, name), EngineName("b"), False, retry_after_s=least)
    return core.send(event, at)


def started(name: str, engine: str = "e") -> StartStep:
    return StartStep.match(engine=engine, admitted=(key(1, name),))  # type: ignore[return-value]


def test_it_waits_off_its_engine_and_runs_again_when_its_time_has_come() -> None:
    core = Core().own()
    assert core.graph(1, flaky()) == [started("a")]
    assert fail(core, "a", at=1.0) == [RetryNode(key(1, "a"), 1, 1.0)]
    assert not core.engine().running
    assert not len(core.engine().queue)
    assert core.wakes[-1] == 2.0
    assert core.tick(1.5) == []
    assert core.tick(2.0) == [started("a")]
    assert fail(core, "a", at=3.0) == [RetryNode(key(1, "a"), 2, 2.0)]
    assert core.tick(5.0) == [started("a")]
    assert core.end_step(at=6.0) == [EndNode(key(1, "a"), "done"), EndRequest.match(outcome="done")]
    assert core.state.is_empty()


def test_after_its_last_attempt_it_fails_as_ever() -> None:
    core = Core().own()
    core.graph(1, flaky(backoffs_s=(0.0,)))
    assert fail(core, "a", at=1.0) == [RetryNode(key(1, "a"), 1, 0.0), started("a")]
    assert fail(core, "a", at=2.0) == [
        EndNode(key(1, "a"), "failed"),
        EndRequest.match(outcome="failed", node=key(1, "a")),
    ]


@pytest.mark.parametrize(
    ("least", "deadline", "options"),
    [
        pytest.param(None, None, {"fallback": Fallback("a", (), (OTHER,))}, id="none mends it"),
        pytest.param(3601.0, None, {}, id="in more than an hour"),
        pytest.param(0.0, 2.0, {}, id="behind the deadline"),
    ],
)
def test_without_an_attempt_in_time_an_error_ends_it_at_once(
    least: float | None, deadline: float | None, options: dict[str, Any]
) -> None:
    core = Core().own()
    core.graph(1, flaky(**options), deadline=deadline)
    ends = fail(core, "a", at=1.0, least=least)
    assert ends == [EndNode(key(1, "a"), "failed"), EndRequest.match(outcome="failed")]


def test_it_waits_as_long_as_the_error_asks_for() -> None:
    core = Core().own()
    core.graph(1, flaky())
    assert fail(core, "a", at=1.0, least=7.0) == [RetryNode(key(1, "a"), 1, 7.0)]
    assert core.tick(8.0) == [started("a")]


def test_an_engine_that_is_down_makes_few_further_attempts_over_all_requests() -> None:
    core = Core().own().borrow("f")
    instead = Fallback("a", (), (OTHER,))

    def outcome(request: int) -> list[type[Command]]:
        core.graph(request, flaky(backoffs_s=(100.0, 100.0), fallback=instead))
        step = core.engine().step
        assert step is not None
        report = NodeReport(key(request, "a"), "error", None, 0.0)
        return [type(one) for one in core.send(StepEnded(EngineName("e"), step, (report,), 0.0))]

    outcomes = [outcome(request) for request in range(1, 101)]
    assert [found[0] for found in outcomes].count(RetryNode) == MOST_RETRIES
    assert outcomes[-1] == [StartFallback, StartCall]
    core.graph(200, spec("a"))
    step = core.engine().step
    assert step is not None
    core.send(StepEnded(EngineName("e"), step, (NodeReport(key(200, "a"), "final"),), 0.0))
    assert [outcome(request)[0] for request in (201, 202)] == [RetryNode, StartFallback]


def test_a_deadline_or_a_cancel_ends_the_wait() -> None:
    for cancels in (False, True):
        core = Core().own()
        core.graph(1, flaky(), deadline=2.5)
        fail(core, "a", at=1.0)
        ends = core.cancel_request(1, at=1.5) if cancels else core.tick(2.5)
        assert ends == [EndRequest.match(outcome="cancelled" if cancels else "deadline")]
        assert core.tick(9.0) == []
        assert core.state.is_empty()
        assert not core.state.retries


def test_closing_ends_the_wait() -> None:
    core = Core().own()
    core.graph(1, flaky())
    fail(core, "a", at=1.0)
    assert core.close(at=1.5) == [EndRequest.match(outcome="closed")]
    assert core.tick(9.0) == []


def test_what_has_streamed_has_neither_attempt_nor_fallback() -> None:
    core = Core().own(stepped=True)
    core.graph(1, flaky(fallback=Fallback("a", (), (OTHER,))))
    core.end_step(at=0.5, partial=[key(1, "a")])
    ends = fail(core, "a", at=1.0)
    assert ends == [EndNode(key(1, "a"), "failed"), EndRequest.match(outcome="failed")]


def test_a_permit_is_free_meanwhile() -> None:
    core = Core().borrow(limit=1)
    assert core.graph(1, flaky(engine="b")) == [StartCall.match(node=key(1, "a"))]
    assert core.graph(2, spec("c", "b")) == []
    assert fail_call(core, "a", at=1.0) == [
        RetryNode(key(1, "a"), 1, 1.0),
        StartCall.match(node=key(2, "c")),
    ]
    assert core.tick(2.0) == []
    assert core.end_call(2, "c", at=2.5)[-1] == StartCall.match(node=key(1, "a"))


def test_a_step_that_raised_costs_its_neighbours_no_attempt() -> None:
    core = Core().own().own("x")
    core.graph(1, spec("z", "x"), flaky("a", "e", "z"), flaky("c", "e", "z"))
    core.end_step("x")
    step = core.engine().step
    assert step is not None
    errors = tuple(NodeReport(key(1, name), "error", None, 0.0) for name in "ac")
    alone = core.send(StepFailed(EngineName("e"), step, 1.0, errors), 1.0)
    assert alone == [started("a")]
    step = core.engine().step
    assert step is not None
    again = core.send(StepFailed(EngineName("e"), step, 1.0, errors[:1]), 2.0)
    assert again == [RetryNode(key(1, "a"), 1, 1.0), started("c")]


def test_who_followed_goes_on_without_it() -> None:
    core = Core().own()
    core.graph(1, flaky(share="k"))
    core.graph(2, spec("c", share="k"))
    first = fail(core, "a", at=1.0)
    assert first == [
        RetryNode(key(1, "a"), 1, 1.0),
        StartStep.match(engine="e", admitted=(key(2, "c"),)),
    ]
    core.tick(2.0)
    ends = core.end_step(at=3.0)
    assert EndNode(key(1, "a"), "done", key(2, "c")) in ends


def test_the_fallback_runs_in_its_place_and_ends_it() -> None:
    core = Core().own().own("f")
    fallback = Fallback("a", (), (OTHER,))
    core.graph(1, flaky(backoffs_s=(), fallback=fallback), spec("last", "e", "a"))
    assert fail(core, "a", at=1.0) == [
        StartFallback(key(1, "a"), fallback),
        started("b", "f"),
    ]
    assert core.end_step("f", at=2.0) == [
        EndNode(key(1, "b"), "done"),
        EndNode(key(1, "a"), "done"),
        started("last"),
    ]
    assert core.end_step(at=3.0)[-1] == EndRequest.match(outcome="done")
    assert core.state.is_empty()


def test_a_request_ends_once_with_the_fallback_of_its_last_stage() -> None:
    core = Core().own().own("f")
    core.graph(1, flaky(backoffs_s=(), fallback=Fallback("a", (), (OTHER,))))
    fail(core, "a", at=1.0)
    assert core.end_step("f", at=2.0) == [
        EndNode(key(1, "b"), "done"),
        EndNode(key(1, "a"), "done"),
        EndRequest.match(outcome="done"),
    ]


def test_a_fallback_that_fails_ends_the_request() -> None:
    core = Core().own().own("f")
    core.graph(1, flaky(backoffs_s=(), fallback=Fallback("a", (), (OTHER,))))
    fail(core, "a", at=1.0)
    assert core.end_step("f", at=2.0, error=[key(1, "b")]) == [
        EndNode(key(1, "b"), "failed"),
        EndRequest.match(outcome="failed", node=key(1, "b")),
    ]
    assert core.state.is_empty()


def test_the_others_of_a_stage_are_dropped_for_its_fallback() -> None:
    core = Core().own().own("f")
    fallback = Fallback("a", ("p", "q"), (OTHER,))
    parts = [flaky(name, backoffs_s=(), fallback=fallback) for name in "pq"]
    last = flaky("a", "e", "p", "q", backoffs_s=(), fallback=fallback)
    core.graph(1, *parts, last, spec("watch", "e", "p"))
    both = fail(core, "p", "q", at=1.0)
    assert both[:1] == [StartFallback(key(1, "p"), fallback)]
    assert started("b", "f") in both
    assert started("watch") in both
    core.end_step("f", at=2.0)
    assert core.end_step(at=3.0)[-1] == EndRequest.match(outcome="done")
    assert core.state.is_empty()


def test_a_lost_engine_leads_to_the_fallback_and_its_late_result_to_nothing() -> None:
    core = Core(step_timeout_s=5.0).own().own("f")
    core.graph(1, flaky(fallback=Fallback("a", (), (OTHER,))))
    assert core.tick(5.0) == [
        StartFallback.match(node=key(1, "a")),
        started("b", "f"),
    ]
    late = core.end_step(at=6.0)
    assert late == []
    assert core.end_step("f", at=7.0)[-1] == EndRequest.match(outcome="done")
    assert core.state.is_empty()


def test_what_is_queued_for_a_lost_engine_falls_back_as_well() -> None:
    core = Core(step_timeout_s=5.0).own().own("f")
    core.graph(2, spec("c"))
    core.graph(1, flaky(fallback=Fallback("a", (), (OTHER,))), at=1.0)
    ends = core.tick(5.0)
    assert StartFallback.match(node=key(1, "a")) in ends
    assert core.end_step("f", at=7.0)[-1] == EndRequest.match(outcome="done")


def test_an_engine_stays_while_somebody_waits_for_an_attempt_on_it() -> None:
    core = Core().own()
    core.graph(1, flaky())
    fail(core, "a", at=1.0)
    assert core.send(EngineLeft(EngineName("e")), 1.2) == []
    assert core.tick(2.0) == [started("a")]
