"""Placement of the pieces of works on the members of a device group: pure, with the time passed in.

Work is cut into pieces when it comes. A piece is bound only when a free member takes it: until then
each event decides again, so that the pieces of a lost, slow or late member go to another, and an
idle member takes those that it would end sooner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from math import inf

from rag_accel.engine_api import WorkId
from rag_accel.engines.devices.pieces import (
    LATE_SHARE,
    DeviceWork,
    Turn,
    WorkPiece,
    by_urgency,
    cut,
)
from rag_accel.engines.devices.plan import (
    MemberBatch,
    MemberLimits,
    MemberLines,
    MemberPlan,
    MemberSpec,
    MemberState,
    RemainingTime,
    drained_at,
    least_late,
)

MOST_FAILURES = 3
"""Failed steps in a row after which a member is away until it has been probed."""

MOST_REFUSALS = 3
"""Times a piece may be refused for a while before it ends with an error, if no member is left."""

MOST_LOSSES = 2
"""Members that may be lost with the same piece before it ends with an error."""

GOES_ON_S = 0.125
"""Predicted seconds to which further pieces of begun works may extend a step."""

LOOK_AGAIN_S = 0.01
"""The least time until a member that is late is looked at again."""

_MOST_LOOKED_AT = 4096  # queued pieces, at each event


class Placement:
    """The queue of pieces, and the members with their running steps.

    A piece is queued, or with a member, or with a second one too because the first is late: then
    the first result counts, and a failure of one is left to the other.

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
        self._slo_s = slo_s
        self._limits = limits or MemberLimits()
        self._hang_s = step_timeout_s
        self._order = {spec.name: at for at, spec in enumerate(members)}
        #: those that take work, in order of preference
        self._members = {spec.name: _state(spec) for spec in members}
        #: those that take none until they have been probed
        self._away: dict[str, MemberState] = {}
        self._works: dict[WorkId, DeviceWork] = {}
        self._num_restricted = 0
        self._rest = RemainingTime()
        self._most_texts = max(1, min((spec.max_texts for spec in members), default=1))
        self._num_works = 0
        #: what late works may take before others, below 0 where they had more than their share
        self._late_tokens = 0.0

    @property
    def members(self) -> tuple[str, ...]:
        """Return the names of the members that take work, in order of preference."""
        return tuple(self._members)

    @property
    def absent(self) -> tuple[str, ...]:
        """Return the names of the members that take none until they have been probed."""
        return tuple(self._away)

    def running(self, member: str) -> tuple[MemberBatch, ...]:
        state = self._state_of(member)
        return () if state is None else tuple(state.running)

    def ended(self, batch: MemberBatch, seconds: float, now: float) -> tuple[WorkPiece, ...]:
        """Learn from a step; return its pieces whose works live, none if it comes too late."""
        state = self._free(batch)
        if state is None:
            return ()
        state.failures = 0
        state.lines.add(batch.cost, seconds, batch.contended)
        done = tuple(piece for piece in batch.pieces if self._owner(piece) is not None)
        for piece in done:
            self._settle(piece, now)
        return done

    def failed(self, batch: MemberBatch, has_changed: bool = False) -> tuple[WorkPiece, ...]:
        """Queue the pieces of a step that raised for another member.

        A piece that raised alone, with no member left to try it on, is returned: its work has
        failed and is forgotten. After ``MOST_FAILURES`` steps in a row the member is away until it
        joins again.

        Args:
            batch: the step.
            has_changed: the member is away after this one step, and what else it computes now is
                given up: it is another model.
        """
        state = self._free(batch)
        if state is None:
            return ()
        batches = [batch]
        state.failures += 1
        if has_changed:
            batches += state.running
            state.running.clear()
        if has_changed or state.failures >= MOST_FAILURES:
            self.suspend(batch.member)
        final: list[WorkPiece] = []
        for returned in batches:
            for piece in self._without(returned):
                present = self._present_for(piece)
                if present and piece.tried.issuperset(present) and len(returned.pieces) == 1:
                    final.append(piece)
                else:
                    self._put_back(piece)
        return self._drop(final)

    def refused(self, batch: MemberBatch, until: float) -> tuple[WorkPiece, ...]:
        """Let a member that took nothing of a step pause, and others take its pieces first.

        A piece that was refused ``MOST_REFUSALS`` times, with no member left to try it on, is
        returned: its work has failed and is forgotten.
        """
        if self._free(batch) is None:
            return ()
        self.pause(batch.member, until)
        pieces = self._without(batch)
        for piece in pieces:
            piece.refusals += 1
        return self._retry(pieces, lambda piece: piece.refusals >= MOST_REFUSALS)

    def give_up(self, batch: MemberBatch) -> tuple[WorkPiece, ...]:
        """Wait for a silent step no longer; its member is away until it joins again.

        Pieces that no other member can be tried on are returned: their works have failed.
        """
        if self._free(batch) is None:
            return ()
        self.suspend(batch.member)
        return self._retry(self._without(batch), lambda _: True)

    def lose(self, member: str) -> tuple[WorkPiece, ...]:
        """Forget a member; return pieces that were lost ``MOST_LOSSES`` times, whose works end."""
        state = self._members.pop(member, None) or self._away.pop(member, None)
        final: list[WorkPiece] = []
        for batch in () if state is None else state.running:
            for piece in self._without(batch):
                piece.losses += 1
                if piece.losses >= MOST_LOSSES:
                    final.append(piece)
                else:
                    self._put_back(piece)
        return self._drop(final)

    def suspend(self, member: str) -> None:
        """Let a member take nothing until it joins again; its running steps go on."""
        state = self._members.pop(member, None)
        if state is not None:
            self._away[member] = state

    def pause(self, member: str, until: float) -> None:
        """Let a member take nothing before a time; its running steps go on."""
        state = self._state_of(member)
        if state is not None:
            state.paused_until = max(state.paused_until, until)

    def paused_until(self, member: str) -> float:
        """Return before when a member that is not away takes nothing."""
        state = self._members.get(member)
        return 0.0 if state is None else state.paused_until

    def rejoin(self, spec: MemberSpec) -> None:
        """Let a member that was away take work again, with a new estimate of its speed."""
        old = self._away.pop(spec.name, None)
        if old is None:
            return
        new = _state(spec)
        new.running = old.running
        found = {**self._members, spec.name: new}
        self._members = {name: found[name] for name in sorted(found, key=self._order.__getitem__)}
        for work in self._works.values():
            if work.admits(spec.name):
                work.alone_since = None

    def silent(self, now: float) -> list[MemberBatch]:
        """Return the steps of members elsewhere that should be given up.

        That is one without an answer for too long, and one so late that others have done all of it.
        """
        found: list[MemberBatch] = []
        for state in self._states():
            for batch in () if state.spec.on_cores else state.running:
                late = self._limits.late_at(batch) <= now and not any(
                    map(self._owner, batch.pieces)
                )
                if late or self._limits.silent_at(batch, self._slo_s, self._hang_s) <= now:
                    found.append(batch)
        return found

    def unanswered(self, now: float) -> tuple[WorkId, ...]:
        """Forget and return works that have waited too long for a member that may take them.

        At once where no member is left that could come back.
        """
        found = tuple(id for id, at in self._alone_until(now).items() if at <= now)
        self.cancel(found)
        return found

    def cancel(self, ids: Iterable[WorkId]) -> None:
        """Forget works; results of their running steps are dropped."""
        for id in ids:
            work = self._works.pop(id, None)
            if work is not None and work.admitted is not None:
                self._num_restricted -= 1

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

    def _alone_until(self, now: float) -> dict[WorkId, float]:
        """Return until when each work that no present member may take waits for one."""
        if len(self._members) == len(self._order) and not self._num_restricted:
            return {}
        until: dict[WorkId, float] = {}
        for work in self._works.values():
            if not work.todo or any(map(work.admits, self._members)):
                work.alone_since = None
                continue
            if work.alone_since is None:
                work.alone_since = now
            can_return = any(map(work.admits, self._away))
            until[work.id] = work.alone_since + self._limits.absent_s if can_return else now
        return until

    def _share_late(self, now: float) -> None:
        """Queue pieces of late steps once more, where another member is free for them."""
        free = {name for name, state in self._members.items() if state.is_free(now)}
        if not free:
            return
        for state in self._states():
            for batch in state.running:
                if self._limits.late_at(batch) > now:
                    continue
                for piece in batch.pieces:
                    work = self._owner(piece)
                    if work is None or piece.is_queued or batch.member in piece.tried:
                        continue
                    if any(map(work.admits, free - piece.tried - {batch.member})):
                        piece.tried.add(batch.member)
                        piece.places += 1
                        self._queue(work, piece)

    def _events_at(self, now: float) -> list[float]:
        """Return when a step may have to be tried elsewhere, or given up, or a work to end."""
        times = list(self._alone_until(now).values())
        for state in self._states():
            for batch in state.running:
                late_at = self._limits.late_at(batch)
                if late_at > now and (len(self._members) > 1 or not state.spec.on_cores):
                    times.append(late_at)
                if not state.spec.on_cores:
                    times.append(self._limits.silent_at(batch, self._slo_s, self._hang_s))
        return [at for at in times if at < inf]

    def _states(self) -> Iterator[MemberState]:
        """Yield all members that are not lost."""
        yield from self._members.values()
        yield from self._away.values()

    def _state_of(self, member: str) -> MemberState | None:
        return self._members.get(member) or self._away.get(member)

    def _free(self, batch: MemberBatch) -> MemberState | None:
        """Return the member that ran a batch, which it no longer does; None if it was given up."""
        state = self._state_of(batch.member)
        if state is None or batch not in state.running:
            return None
        state.running.remove(batch)
        return state

    def _present_for(self, piece: WorkPiece) -> set[str]:
        """Return the present members that may be given a piece."""
        work = self._owner(piece)
        return set(self._members if work is None else filter(work.admits, self._members))

    def _without(self, batch: MemberBatch) -> list[WorkPiece]:
        """Note that a member has not computed a step; return pieces that are nowhere else."""
        found: list[WorkPiece] = []
        for piece in batch.pieces:
            piece.tried.add(batch.member)
            if piece.places > 1:
                piece.places -= 1
            else:
                found.append(piece)
        return found

    def _retry(
        self, pieces: Iterable[WorkPiece], may_end: Callable[[WorkPiece], bool]
    ) -> tuple[WorkPiece, ...]:
        """Queue pieces again; drop and return those that may end, once tried on all members."""
        final: list[WorkPiece] = []
        for piece in pieces:
            if may_end(piece) and piece.tried.issuperset(self._present_for(piece)):
                final.append(piece)
            else:
                self._put_back(piece, alone=piece.alone)
        return self._drop(final)

    def _settle(self, piece: WorkPiece, now: float) -> None:
        work = self._works[piece.work]
        work.left.discard(piece)
        if piece.is_queued:  # once more, since the member that has computed it was late
            work.todo.remove(piece)
            piece.is_queued = False
        if not work.left:
            self.cancel([work.id])
            self._rest.ended(work.request, work.depth, now)

    def _owner(self, piece: WorkPiece) -> DeviceWork | None:
        """Return the live work of a piece; an id whose work has ended may live again."""
        work = self._works.get(piece.work)
        return work if work is not None and piece in work.left else None

    def _put_back(self, piece: WorkPiece, *, alone: bool = True) -> None:
        work = self._owner(piece)
        piece.alone = alone
        if work is not None:
            self._queue(work, piece)

    def _queue(self, work: DeviceWork, piece: WorkPiece) -> None:
        work.todo.appendleft(piece)
        piece.is_queued = True
        work.is_begun = False

    def _drop(self, pieces: Iterable[WorkPiece]) -> tuple[WorkPiece, ...]:
        found = tuple(piece for piece in pieces if self._owner(piece) is not None)
        self.cancel(piece.work for piece in found)
        return found

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
        return list((self._members or self._away).values())

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
        return [s for s in self._states() if s.spec.on_cores and s.running]

    def _held_threads(self) -> int:
        return sum(batch.threads for s in self._states() for batch in s.running)

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


def _state(spec: MemberSpec) -> MemberState:
    return MemberState(spec, MemberLines(spec.alpha, spec.beta))
