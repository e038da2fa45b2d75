"""Placement of the pieces of works on the members of a device group: pure, with the time passed in.

Work is cut into pieces when it comes. A piece is bound only when a free member takes it: until then
each event decides again, so that the pieces of a lost, slow or late member go to another, and an
idle member takes those that it would end sooner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from math import inf

from rag_accel.engine_api import WorkId
from rag_accel.engines.devices.limits import MemberLimits
from rag_accel.engines.devices.packing import drained_at, least_late
from rag_accel.engines.devices.pieces import (
    LATE_SHARE,
    DeviceWork,
    Turn,
    WorkPiece,
    by_urgency,
    cut,
)
from rag_accel.engines.devices.plan import MemberBatch, MemberPlan, MemberSpec, MemberState
from rag_accel.engines.devices.returns import Returns

GOES_ON_S = 0.125
"""Predicted seconds to which further pieces of begun works may extend a step."""

LOOK_AGAIN_S = 0.01
"""The least time until a member that is late is looked at again."""

_MOST_LOOKED_AT = 4096  # queued pieces, at each event


class Placement(Returns):
    """The queue of pieces, and the members with their running steps.

    Args:
        members: the members, the most preferred one first.
        slo_s: by when a work without a deadline should have ended, in seconds after it came.
        limits: when members are late, silent or absent for too long; by default those of
            ``MemberLimits``.
        step_timeout_s: after so much time a step of a member elsewhere is given up in any case.
    """

    def __init__(
        self,
        members: Sequence[MemberSpec],
        slo_s: float | None = None,
        limits: MemberLimits | None = None,
        step_timeout_s: float = inf,
    ) -> None:
        super().__init__(members, slo_s, limits, step_timeout_s)
        self._most_texts = max(1, min((spec.max_texts for spec in members), default=1))
        self._num_works = 0
        #: what late works may take before others, below 0 where they had more than their share
        self._late_tokens = 0.0

    @property
    def num_work_items(self) -> int:
        """Return the number of live works."""
        return len(self._works)

    def has(self, id: WorkId) -> bool:
        return id in self._works

    @property
    def num_queued(self) -> int:
        """Return the number of pieces that no member has taken."""
        return sum(len(work.todo) for work in self._works.values())

    def predict_s(self, member: str, tokens: int, contended: bool = False) -> float:
        """Return the predicted seconds of a member's step over ``tokens``."""
        return self._members[member].lines.predict_s(tokens, contended)

    def add(
        self,
        id: WorkId,
        costs: Sequence[int],
        now: float,
        *,
        request: str = "",
        depth: int = 1,
        arrived_at: float | None = None,
        deadline: float | None = None,
        admitted: frozenset[str] | None = None,
    ) -> None:
        """Queue a work of one text or more.

        Args:
            id: unique among live works.
            costs: estimated tokens of each text.
            now: the time.
            request: the request it belongs to.
            depth: the longest remaining path to the request's end, in primitives.
            arrived_at: when the request arrived; by default now.
            deadline: when the request must have ended.
            admitted: names of the members that may be given its texts; by default all.
        """
        self._rest.arrived(request, depth, now)
        latest = None if self._slo_s is None else now + self._slo_s
        if deadline is not None:
            latest = deadline - self._rest.after(depth)
        arrived = now if arrived_at is None else arrived_at
        self._num_works += 1
        work = DeviceWork(
            id, request, depth, arrived, latest, now, now, self._num_works, sum(costs), admitted
        )
        work.todo.extend(cut(id, costs, self._most_texts))
        work.left.update(work.todo)
        self._works[id] = work
        self._num_restricted += admitted is not None

    def late_by_s(self, tokens: int, now: float, cores: int = 1, contended: bool = False) -> float:
        """Return how late all that is queued would end with so many more tokens, 0 if in time.

        Each member computes its share in one step, after the running one. Without members, or
        without a limit for works that have no deadline, nothing is late.

        Args:
            tokens: that would come.
            now: the time.
            cores: as for ``bind``.
            contended: as for ``bind``.
        """
        if self._slo_s is None:
            return 0.0
        return max(0.0, self.drained_s(tokens, now, cores, contended) - self._slo_s)

    def drained_s(self, tokens: int, now: float, cores: int = 1, contended: bool = False) -> float:
        """Return in how many seconds all that is queued would end with so many more tokens.

        0 without members. Where all are away, as if they came back now: so no more is queued for
        them than they could compute. Arguments as of ``late_by_s``.
        """
        lanes = self._lanes(now, cores, contended)
        if not lanes:
            return 0.0
        return drained_at(tokens + self.queued_tokens, lanes) - now

    def tokens_a_second(self, text_tokens: float, contended: bool = False) -> float:
        """Return the tokens a second of all members in steps that are full of such texts."""
        return sum(
            state.spec.in_flight * tokens / seconds
            for state, tokens, seconds in self._full_steps(text_tokens, contended)
            if seconds > 0.0
        )

    def full_step_s(self, text_tokens: float, contended: bool = False) -> float:
        """Return the predicted seconds of the longest step that is full of such texts."""
        return max((step[-1] for step in self._full_steps(text_tokens, contended)), default=0.0)

    def step_s(self) -> float:
        """Return the predicted seconds of the longest step among the latest of each member."""
        return max((state.step_s for state in self._members.values()), default=0.0)

    @property
    def queued_tokens(self) -> int:
        """Return the estimated tokens of all pieces that no member has taken."""
        return sum(piece.cost for work in self._works.values() for piece in work.todo)

    def bind(self, now: float, cores: int = 1, contended: bool = False) -> list[MemberBatch]:
        """Bind pieces to free members.

        Args:
            now: the time.
            cores: threads that members here may use together.
            contended: whether a neighbour outside the group computes on the same cores.
        """
        self._share_late(now)
        batches: list[MemberBatch] = []
        while plan := self._next_plan(now, cores, contended):
            batches.append(self._take(plan, now, cores, contended))
        return batches

    def drop_all(self) -> tuple[WorkId, ...]:
        ids = tuple(self._works)
        self._works.clear()
        self._num_restricted = 0
        return ids

    def look_again_at(self, now: float) -> float | None:
        """Return when to bind again if nothing happens, None if only an event can change it."""
        times = self._events_at(now)
        if any(work.todo for work in self._works.values()):
            states = self._members.values()
            times += [s.paused_until for s in states if not s.running and not s.is_free(now)]
            if any(state.is_free(now) for state in states):
                times += [batch.ends_at(now) for s in states for batch in s.running]
        return max(min(times), now + LOOK_AGAIN_S) if times else None

    def check(self) -> None:
        """Raise AssertionError unless each piece of a live work is in ``places`` places.

        It is in one, or in another too where a member is late; and never twice in the queue.
        """
        places: Counter[WorkPiece] = Counter()
        for state in self._presence.states():
            assert len(state.running) <= state.spec.in_flight
            for batch in state.running:
                places.update(batch.pieces)
        for work in self._works.values():
            assert work.left
            assert len(set(work.todo)) == len(work.todo)
            assert {piece for piece in work.left if piece.is_queued} == set(work.todo)
            places.update(work.todo)
            assert all(places[piece] == piece.places > 0 for piece in work.left)
        restricted = [work for work in self._works.values() if work.admitted is not None]
        assert len(restricted) == self._num_restricted

    def _next_plan(self, now: float, cores: int, contended: bool) -> MemberPlan | None:
        """Return the first step that a free member should begin, as much as is in it."""
        if not any(work.todo for work in self._works.values()):
            return None
        if not any(self._may_take(state, now, cores) for state in self._members.values()):
            return None
        plans = self._plans(now, cores, contended)
        turns = self._turns(plans, now, contended)
        plans = least_late(turns, plans, lambda: self._plans(now, cores, contended))
        free = (plan for plan in plans if self._may_take(plan.member, now, cores))
        return next((plan for plan in free if plan.pieces), None)

    def _turns(self, plans: list[MemberPlan], now: float, contended: bool) -> list[Turn]:
        """Return the queued pieces that are looked at, most urgent first."""
        soonest_s = min(plan.member.lines.predict_s(1, contended) for plan in plans)
        work_items: Iterable[DeviceWork] = self._works.values()
        if self._num_restricted:
            work_items = [work for work in work_items if any(map(work.admits, self._members))]
        turns = by_urgency(work_items, now, soonest_s, self._late_tokens)
        return list(islice(turns, _MOST_LOOKED_AT))

    def _plans(self, now: float, cores: int, contended: bool) -> list[MemberPlan]:
        return [self._plan(state, now, cores, contended) for state in self._members.values()]

    def _plan(self, state: MemberState, now: float, cores: int, contended: bool) -> MemberPlan:
        at = state.free_at(now)
        if state.is_free(now) and not self._may_take(state, now, cores):
            ends = [other.free_at(now) for other in self._computing_here()]
            at = max(at, min(ends, default=now))
        goes_on_s = GOES_ON_S if self._slo_s is None else min(GOES_ON_S, self._slo_s / 8)
        return MemberPlan(state, self._is_contended(state, contended), at, goes_on_s)

    def _expected(self) -> list[MemberState]:
        """Return the members that will compute the queue: if all are away, those."""
        return list((self._members or self._presence.away).values())

    def _lanes(self, now: float, cores: int, contended: bool) -> list[MemberPlan]:
        """Return a plan for each step that expected members may compute at once.

        Steps that are in flight together slow each other; a member's lines have learned that.
        """
        lanes: list[MemberPlan] = []
        for state in self._expected():
            plan = self._plan(state, now, cores, contended)
            lanes.append(plan)
            ends = sorted(batch.ends_at(now) for batch in state.running)
            free = [now] * (state.spec.in_flight - len(ends))
            for at in (*free, *ends)[1:]:
                lanes.append(replace(plan, starts_at=max(plan.starts_at, at), pieces=[]))
        return lanes

    def _full_steps(
        self, text_tokens: float, contended: bool
    ) -> list[tuple[MemberState, float, float]]:
        """Return tokens and predicted seconds of a step of each member, full of such texts."""
        found: list[tuple[MemberState, float, float]] = []
        for state in self._expected():
            tokens = min(state.spec.max_tokens, state.spec.max_texts * text_tokens)
            seconds = state.lines.predict_s(tokens, self._is_contended(state, contended))
            found.append((state, tokens, seconds))
        return found

    def _may_take(self, state: MemberState, now: float, cores: int) -> bool:
        if not state.is_free(now):
            return False
        held = self._held_threads()
        return not state.spec.on_cores or not held or held < cores

    def _computing_here(self) -> list[MemberState]:
        return [s for s in self._presence.states() if s.spec.on_cores and s.running]

    def _held_threads(self) -> int:
        return sum(batch.threads for s in self._presence.states() for batch in s.running)

    def _is_contended(self, state: MemberState, contended: bool) -> bool:
        if not state.spec.on_cores:
            return False
        return contended or any(other is not state for other in self._computing_here())

    def _take(self, plan: MemberPlan, now: float, cores: int, contended: bool) -> MemberBatch:
        state = plan.member
        turns = plan.pieces
        for turn in turns:
            turn.work.todo.remove(turn.piece)
            turn.piece.is_queued = False
            turn.work.is_begun = True
            turn.work.served_at = now
        cost = sum(turn.piece.cost for turn in turns)
        late = sum(turn.piece.cost for turn in turns if turn.is_overdue)
        self._late_tokens = min(cost, self._late_tokens + LATE_SHARE * cost - late)
        is_contended = self._is_contended(state, contended)
        batch = MemberBatch(
            state.spec.name,
            tuple(turn.piece for turn in turns),
            cost,
            now,
            state.lines.predict_s(cost, is_contended),
            is_contended,
            self._threads(state, cores),
        )
        state.running.append(batch)
        state.step_s = batch.predicted_s
        return batch

    def _threads(self, state: MemberState, cores: int) -> int:
        """Return a member's threads: all cores, unless another member here has work too."""
        if not state.spec.on_cores:
            return 0
        held = self._held_threads()
        share = cores
        if held or self.num_queued:
            share = cores // sum(member.spec.on_cores for member in self._members.values())
        return max(1, min(share, cores - held, state.spec.max_threads))
