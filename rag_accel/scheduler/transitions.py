"""The state machine: ``handle(state, event, now) -> commands``.

One small function per event; ``look_at_clock`` then does what is due, and ``dispatch`` looks at
every engine whose queue or slots changed. It mutates ``state`` and nothing else, reads no clock and
draws no random number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rag_accel.scheduler.arrivals import (
    Arrival,
    borrowed_added,
    engine_left,
    leaf_arrived,
    loop_held_up,
    owned_added,
    program_left,
    refusal,
    refuse,
    reported,
    request_arrived,
    request_closed,
    request_opened,
)
from rag_accel.scheduler.commands import Command, WakeAt
from rag_accel.scheduler.completions import cancel_node, end_node, end_request
from rag_accel.scheduler.dispatch import dispatch, look_at_clock, next_wake
from rag_accel.scheduler.early import early_arrived
from rag_accel.scheduler.early_answers import early_asked
from rag_accel.scheduler.messages import (
    BorrowedEngineAdded,
    CallEnded,
    Closing,
    EarlyArrived,
    EarlyAsked,
    EngineLeft,
    Event,
    LeafArrived,
    LoopHeldUp,
    NodeCancelled,
    OwnedEngineAdded,
    ProgramLeft,
    Reported,
    RequestArrived,
    RequestCancelled,
    RequestClosed,
    RequestOpened,
    StepEnded,
    StepFailed,
    Tick,
)
from rag_accel.scheduler.returns import call_ended, step_ended, step_failed
from rag_accel.scheduler.state import SchedulerState


def handle(state: SchedulerState, event: Event, now: float, *, more: bool = False) -> list[Command]:
    """Apply one event and return what is to be done, in order.

    Every event also does what is due at ``now``, so that a busy driver needs no ``Tick``.

    Args:
        more: the next event is already there, so nothing is started yet: what arrives together
            starts together. Some later event must come without it.

    Raises:
        InvalidTransitionError: if the event contradicts the state, with the node's story.
    """
    out: list[Command] = []
    state.events += 1
    outcome = refusal(state, event, now) if isinstance(event, Arrival) else None
    if outcome is None:
        _HANDLERS[type(event)](state, event, now, out)
    else:
        refuse(event, outcome, out)
    if isinstance(event, Tick) or (state.wake_at is not None and state.wake_at <= now):
        state.wake_at = None
        look_at_clock(state, now, out)
    if more:
        return out
    dispatch(state, now, out)
    wake = next_wake(state, now)
    if wake is not None and (state.wake_at is None or wake < state.wake_at):
        state.wake_at = wake
        out.append(WakeAt(wake))
    return out


def _node_cancelled(
    state: SchedulerState, event: NodeCancelled, now: float, out: list[Command]
) -> None:
    run = state.find(event.node.request)
    node = run.nodes.get(event.node.node) if run else None
    if node is not None and node.state != "ended":
        cancel_node(state, node, out)
        end_node(state, node, "cancelled", now, out)


def _request_cancelled(
    state: SchedulerState, event: RequestCancelled, now: float, out: list[Command]
) -> None:
    run = state.find(event.request)
    if run is not None:
        end_request(state, run, "cancelled", None, now, out)


def _closing(state: SchedulerState, event: Closing, now: float, out: list[Command]) -> None:
    state.closed = True
    state.begun.clear()
    for run in [*state.requests.values(), *state.pending.values()]:
        end_request(state, run, "closed", None, now, out)


_HANDLERS: dict[type, Callable[[SchedulerState, Any, float, list[Command]], None]] = {
    OwnedEngineAdded: owned_added,
    BorrowedEngineAdded: borrowed_added,
    EngineLeft: engine_left,
    RequestArrived: request_arrived,
    RequestOpened: request_opened,
    LeafArrived: leaf_arrived,
    EarlyArrived: early_arrived,
    EarlyAsked: early_asked,
    Reported: reported,
    ProgramLeft: program_left,
    RequestClosed: request_closed,
    StepEnded: step_ended,
    StepFailed: step_failed,
    CallEnded: call_ended,
    NodeCancelled: _node_cancelled,
    LoopHeldUp: loop_held_up,
    RequestCancelled: _request_cancelled,
    Tick: lambda state, event, now, out: None,  # every event does what is due
    Closing: _closing,
}
