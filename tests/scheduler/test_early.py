"""Early work runs behind everything else, ends with its request, and is dropped for any other."""

from __future__ import annotations

import pytest
from core_harness import Core, key

from rag_accel.scheduler.commands import (
    CancelWork,
    Command,
    EndEarly,
    EndNode,
    InterruptStep,
    StartStep,
)
from rag_accel.scheduler.early import MOST_WORKS, PIECE_S
from rag_accel.scheduler.learning import COMPANY_S, IDLE_SHARE, IdleTime
from rag_accel.scheduler.messages import EarlyArrived, EngineLeft, EngineName, Outcome

LLM = {"stepped": True, "interruptible": True, "ends_in_time": True, "shares_cores": True}


def early(core: Core, request: int, name: str, engine: str = "e", at: float = 0.0) -> list[Command]:
    """Bring early work."""
    return core.send(EarlyArrived(key(request, name), EngineName(engine)), at)


def ended(request: int, name: str, outcome: Outcome) -> EndEarly:
    """Return the end of early work of the engine ``e``."""
    return EndEarly(key(request, name), EngineName("e"), outcome)


def test_it_runs_in_short_pieces_on_an_idle_engine() -> None:
    core = Core(cores=4).own(max_threads=4, **LLM)
    core.open(1)
    (start,) = early(core, 1, "x")
    assert StartStep.match(admitted=(key(1, "x"),), time_s=PIECE_S, is_early=True) == start
    (again,) = core.end_step(at=0.01, silent=[])
    assert StartStep.match(admitted=(), is_early=True) == again
    assert core.end_step(at=0.02, final=[key(1, "x")]) == [ended(1, "x", "done")]


def test_other_work_of_its_engine_ends_the_step_and_drops_it() -> None:
    core = Core().own(**LLM)
    core.open(1)
    early(core, 1, "x")
    assert core.leaf(1, "a", at=0.001) == [InterruptStep(EngineName("e"))]
    dropped, cancelled, start = core.end_step(at=0.002, silent=[])
    assert dropped == ended(1, "x", "cancelled")
    assert cancelled == CancelWork(EngineName("e"), (key(1, "x"),))
    assert StartStep.match(admitted=(key(1, "a"),), is_early=False) == start


def test_it_waits_while_another_engine_computes_on_its_cores() -> None:
    core = Core().own(**LLM).own("other")
    core.own("elsewhere", max_threads=0, stepped=True, bounds_its_work=True)
    core.open(1)
    core.leaf(1, "a", "other")
    assert early(core, 1, "x") == []
    (start,) = early(core, 1, "y", "elsewhere")
    assert StartStep.match(engine="elsewhere", is_early=True) == start
    _, resumed = core.end_step("other", at=1.0)
    assert StartStep.match(engine="e", is_early=True) == resumed


def test_what_an_engine_holds_pauses_while_others_compute_on_its_cores() -> None:
    core = Core().own(**LLM).own("other")
    core.open(1)
    early(core, 1, "x")
    core.leaf(1, "a", "other", at=0.001)
    assert core.end_step(at=0.002, silent=[]) == []
    _, resumed = core.end_step("other", at=1.0)
    assert StartStep.match(engine="e", admitted=(), is_early=True) == resumed


def test_an_engine_that_is_not_stepped_takes_as_many_as_a_piece_holds() -> None:
    core = Core().own(per_item_s=PIECE_S / 2).own("busy")
    core.open(1)
    core.leaf(1, "a", "busy")
    for name in "xyz":
        early(core, 1, name)
    *_, start = core.end_step("busy", at=1.0)
    assert StartStep.match(admitted=(key(1, "x"), key(1, "y"))) == start
    *ends, last = core.end_step(at=1.1, final=[key(1, "x")])
    assert ends == [ended(1, "x", "done"), ended(1, "y", "failed")]
    assert StartStep.match(admitted=(key(1, "z"),)) == last


def test_a_step_that_raises_ends_it_and_nothing_else() -> None:
    core = Core().own(**LLM)
    core.open(1)
    early(core, 1, "x")
    assert core.fail_step(at=0.1) == [ended(1, "x", "failed")]
    assert StartStep.match(admitted=(key(1, "a"),)) == core.leaf(1, "a", at=0.2)[0]


@pytest.mark.parametrize("end", ["close_program", "cancel_request"])
def test_it_ends_with_its_request(end: str) -> None:
    core = Core().own(**LLM).own("other")
    core.open(1)
    early(core, 1, "x")
    core.leaf(1, "a", "other")
    early(core, 1, "y")
    if end == "close_program":
        core.end_step("other", at=0.1)
    ends = getattr(core, end)(1, at=0.2)
    assert [one for one in ends if isinstance(one, EndEarly)] == [
        ended(1, "x", "cancelled"),
        ended(1, "y", "cancelled"),
    ]


def test_it_neither_keeps_a_request_alive_nor_ends_one() -> None:
    core = Core().own(**LLM).borrow("b", 1)
    core.leaf(1, "a", "b")
    early(core, 1, "x")
    core.end_step(at=0.1, error=[key(1, "x")])
    early(core, 1, "y", at=0.1)
    done, dropped = core.end_call(1, "a", at=0.2)[:2]
    assert EndNode.match(node=key(1, "a"), outcome="done") == done
    assert dropped == ended(1, "y", "cancelled")


def test_work_of_a_request_that_does_not_live_is_dropped() -> None:
    core = Core().own(**LLM)
    assert early(core, 7, "x") == [ended(7, "x", "cancelled")]


def test_an_engine_that_leaves_takes_it_along() -> None:
    core = Core().own(**LLM).own("other")
    core.open(1)
    core.leaf(1, "a", "other")
    early(core, 1, "x")
    left = core.send(EngineLeft(EngineName("e")), 0.1)
    assert left[0] == ended(1, "x", "cancelled")
    assert early(core, 1, "y", at=0.2) == [ended(1, "y", "cancelled")]


def test_more_than_the_bound_drops_the_oldest() -> None:
    core = Core().own(**LLM).own("other")
    core.open(1)
    core.leaf(1, "a", "other")
    for number in range(MOST_WORKS):
        assert early(core, 1, f"x{number}") == []
    assert early(core, 1, "last") == [ended(1, "x0", "cancelled")]


def test_while_others_live_it_waits_until_idle_time_has_paid_for_it() -> None:
    core = Core().own(**LLM)
    for request in (1, 2):
        core.open(request)
    core.leaf(1, "a", at=1.0)
    core.end_step(at=5.0)
    assert early(core, 1, "x", at=5.0) == []
    assert core.wakes[-1] == pytest.approx(5.0, abs=1e-3)
    (start,) = core.tick(at=5.1)
    assert StartStep.match(is_early=True) == start
    # It took more than was paid, so that the rest waits for the idle time that makes up for it.
    assert core.end_step(at=5.2, took=0.1, silent=[]) == []
    assert core.wakes[-1] == pytest.approx(5.2 + (0.1 - 0.2 * IDLE_SHARE) / IDLE_SHARE, abs=1e-3)


def test_a_lone_request_s_early_work_is_not_counted() -> None:
    core = Core().own(**LLM)
    for request in (1, 2):
        core.open(request)
    core.close_program(2, at=0.0)
    core.leaf(1, "a", at=0.0)
    core.end_step(at=COMPANY_S + 1)
    (start,) = early(core, 1, "x", at=COMPANY_S + 1)
    assert StartStep.match(is_early=True) == start


def test_an_engine_that_is_busy_for_half_of_the_time_has_no_idle_time_to_give() -> None:
    idle = IdleTime()
    for turn in range(50):
        idle.work(turn + 0.5, turn + 1.0)
    assert idle.at(50.0) == 0.0
    assert idle.at(51.0) == IDLE_SHARE
