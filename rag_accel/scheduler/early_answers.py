"""Early leaves: calls that a lone request's program will likely make, begun with its present one.

Unlike early work (``early.py``) they join the steps of their engine, since together such calls take
less time than one after the other. So they are begun only by a request that is alone, and end as
soon as another one lives, unless the program has asked for them by then.
"""

from __future__ import annotations

from rag_accel.scheduler.commands import Command
from rag_accel.scheduler.completions import cancel_node, end_node
from rag_accel.scheduler.deadlines import enter_place
from rag_accel.scheduler.messages import EarlyAsked, LeafArrived
from rag_accel.scheduler.state import SchedulerState


def may_begin_early(state: SchedulerState, event: LeafArrived) -> bool:
    """Tell whether a request may begin an early leaf: it is a program, and no other one lives.

    A graph ends with its last node, which nothing is to hold up that nobody waits for.
    """
    run = state.requests.get(event.request)
    return event.node.early and run is not None and not run.graph and state.live == 1


def early_asked(state: SchedulerState, event: EarlyAsked, now: float, out: list[Command]) -> None:
    """Let an early leaf, unless it has ended, be as any other from now on."""
    state.unasked.pop(event.node, None)
    if (run := state.find(event.node.request)) is not None:
        node = run.nodes.get(event.node.node)
        enter_place(run, event.engine, node.spec.size if node is not None else 0, now)


def drop_unasked(state: SchedulerState, now: float, out: list[Command]) -> None:
    """End the early leaves that nobody waits for: their request ends, or is not alone."""
    for key in list(state.unasked):
        node = state.find_node(key)
        assert node is not None, "an early leaf outlived its request"
        cancel_node(state, node, out)
        end_node(state, node, "cancelled", now, out)
