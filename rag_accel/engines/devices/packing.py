"""Packing of queued pieces into the next steps of members, and the choice of late ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from rag_accel.engines.devices.pieces import Turn
from rag_accel.engines.devices.plan import MemberPlan

AT_EASE = 0.5
"""The share of its time that a piece may use on the preferred member.

Beyond it, the member that ends it first takes it, so that later arrivals meet their deadline.
While a begun work has pieces left, all members compute anyway, and no piece waits for the preferred
one.
"""

POSTPONED = (1, 2, 4, 8, 16, 32)
"""Numbers of the most urgent pieces that are put off on trial, where some are late in any case."""

_MOST_WEIGHED = 256  # queued pieces, where some are late
_LEAST_ALPHA = 1e-9  # seconds a token: a line may be flat


def first_in_time(
    turn: Turn, plans: Sequence[MemberPlan], ease: float = AT_EASE
) -> MemberPlan | None:
    """Return the plan a piece belongs to if it can end in time.

    Plans come in order of preference. The first one wins on which the whole step still ends before
    the earliest latest-end in it, and the piece within ``ease`` of its time; where there is
    none, that on which it ends soonest. None if it is late there too, or has no latest end.
    """
    latest = turn.work.latest_end
    if latest is None:
        return None
    at_ease = latest - (1.0 - ease) * max(0.0, latest - turn.work.came_at)
    sooner, soonest_end = None, inf
    for plan in plans:
        end = plan.end_with(turn)
        if end <= at_ease:
            return plan
        if end < soonest_end:
            sooner, soonest_end = plan, end
    return sooner if soonest_end <= latest else None


def soonest(turn: Turn, plans: Sequence[MemberPlan]) -> MemberPlan:
    """Return the plan in which a piece ends soonest without making others late."""
    return min(plans, key=lambda plan: plan.end_with(turn))


def place(turns: Sequence[Turn], plans: Sequence[MemberPlan]) -> int:
    """Put pieces into plans, in their order; return how many end too late.

    Those come after all others, into what these leave. One whose work is overdue does not: it has
    waited too long. Nor do further pieces of begun works, which come last in any case: for them
    nobody is put off.
    """
    late = _place_in_time(turns, plans)
    _place_late(late, plans)
    return len(late)


def least_late(
    turns: Sequence[Turn], plans: list[MemberPlan], make: Callable[[], list[MemberPlan]]
) -> list[MemberPlan]:
    """Return the plans in which fewest pieces are late, even if the most urgent are put off.

    A step that must end soon for one piece has room for few others, each of which waits for the
    fixed cost of one more step.

    Args:
        turns: the queued pieces, most urgent first.
        plans: empty ones.
        make: returns the like; called only where pieces are late.
    """
    num_late = place(turns, plans)
    if num_late and len(turns) > _MOST_WEIGHED:
        turns, plans = turns[:_MOST_WEIGHED], make()
        num_late = place(turns, plans)
    for count in POSTPONED:
        if not num_late or count >= len(turns):
            break
        other = make()
        late = _place_in_time([*turns[count:], *turns[:count]], other, num_late)
        if len(late) < num_late:
            _place_late(late, other)
            plans, num_late = other, len(late)
    return plans


def drained_at(tokens: int, plans: Sequence[MemberPlan]) -> float:
    """Return when members could have computed so many tokens, each in one step of its own.

    Args:
        tokens: of any number of pieces.
        plans: empty ones, at least one.
    """
    begins: list[tuple[float, float]] = []
    for plan in plans:
        line = plan.member.lines.line(plan.contended)
        begins.append((plan.starts_at + line.beta, max(line.alpha, _LEAST_ALPHA)))
    begins.sort()
    rate = weighted = 0.0
    end = inf
    for begin, alpha in begins:
        if end <= begin:
            break  # all is computed before this member has begun
        rate += 1.0 / alpha
        weighted += begin / alpha
        end = (tokens + weighted) / rate
    return end


def _place_in_time(
    turns: Sequence[Turn], plans: Sequence[MemberPlan], most: float = inf
) -> list[Turn]:
    """Put pieces that are not late into plans; return the others, at most so many of them."""
    late: list[Turn] = []
    ease = 0.0 if any(turn.goes_on for turn in turns) else AT_EASE
    for turn in turns:
        allowed = _untried(turn, plans)
        plan = None if turn.goes_on else first_in_time(turn, allowed, ease)
        if plan is None and turn.has_limit:
            late.append(turn)
            if len(late) >= most:
                break
        else:
            (plan or soonest(turn, allowed)).add(turn)
    return late


def _place_late(late: Sequence[Turn], plans: Sequence[MemberPlan]) -> None:
    for turn in late:
        soonest(turn, _untried(turn, plans)).add(turn)


def _untried(turn: Turn, plans: Sequence[MemberPlan]) -> Sequence[MemberPlan]:
    """Return the plans of members on which a piece has not failed; all if it has on each.

    Members that may not be given its texts are never among them.
    """
    if turn.work.admitted is not None:
        plans = [plan for plan in plans if turn.work.admits(plan.member.spec.name)]
    if not turn.piece.tried:
        return plans
    return [plan for plan in plans if plan.member.spec.name not in turn.piece.tried] or plans
