"""Pieces that members return: computed, failed, refused, lost, or queued a second time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf

from rag_accel.engine_api import WorkId
from rag_accel.engines.devices.latency_fit import MemberLines, RemainingTime
from rag_accel.engines.devices.limits import MemberLimits
from rag_accel.engines.devices.pieces import DeviceWork, WorkPiece
from rag_accel.engines.devices.plan import MemberBatch, MemberSpec, MemberState


class Presence:
    """Members in order of preference: present, or away.

    Args:
        specs: of the members, all present, the most preferred one first.
    """

    def __init__(self, specs: Sequence[MemberSpec]) -> None:
        self._order = {spec.name: at for at, spec in enumerate(specs)}
        #: those that take work, in order of preference
        self.present = {spec.name: _state(spec) for spec in specs}
        #: those that take none until they have been probed
        self.away: dict[str, MemberState] = {}

    @property
    def is_complete(self) -> bool:
        """Tell whether every member is present."""
        return len(self.present) == len(self._order)

    def states(self) -> Iterator[MemberState]:
        """Yield all members that are not lost."""
        yield from self.present.values()
        yield from self.away.values()

    def get(self, member: str) -> MemberState | None:
        """Return a member that is not lost."""
        return self.present.get(member) or self.away.get(member)

    def suspend(self, member: str) -> None:
        """Let a member take nothing until it joins again; its running steps go on."""
        state = self.present.pop(member, None)
        if state is not None:
            self.away[member] = state

    def rejoin(self, spec: MemberSpec) -> bool:
        """Let a member that was away take work, with a new estimate of its speed.

        False if it was not away.
        """
        old = self.away.pop(spec.name, None)
        if old is None:
            return False
        new = _state(spec)
        new.running = old.running
        found = {**self.present, spec.name: new}
        self.present = {name: found[name] for name in sorted(found, key=self._order.__getitem__)}
        return True

    def lose(self, member: str) -> MemberState | None:
        return self.present.pop(member, None) or self.away.pop(member, None)

    def free(self, batch: MemberBatch) -> MemberState | None:
        """Return the member that ran a batch, which it no longer does; None if it was given up."""
        state = self.get(batch.member)
        if state is None or batch not in state.running:
            return None
        state.running.remove(batch)
        return state


def _state(spec: MemberSpec) -> MemberState:
    return MemberState(spec, MemberLines(spec.alpha, spec.beta))


MOST_FAILURES = 3
"""Failed steps in a row after which a member is away until it has been probed."""

MOST_REFUSALS = 3
"""Times a piece may be refused for a while before it ends with an error, if no member is left."""

MOST_LOSSES = 2
"""Members that may be lost with the same piece before it ends with an error."""


class Returns:
    """The live works of a group and the ends of its members' steps; the base of ``Placement``.

    A piece is queued, or with a member, or with a second one too because the first is late: then
    the first result counts, and a failure of one is left to the other.
    """

    def __init__(
        self,
        members: Sequence[MemberSpec],
        slo_s: float | None,
        limits: MemberLimits | None,
        step_timeout_s: float,
    ) -> None:
        self._slo_s = slo_s
        self._limits = limits or MemberLimits()
        self._hang_s = step_timeout_s
        self._presence = Presence(members)
        self._works: dict[WorkId, DeviceWork] = {}
        self._num_restricted = 0
        self._rest = RemainingTime()

    @property
    def _members(self) -> dict[str, MemberState]:
        return self._presence.present

    @property
    def members(self) -> tuple[str, ...]:
        """Return the names of the members that take work, in order of preference."""
        return tuple(self._members)

    @property
    def absent(self) -> tuple[str, ...]:
        """Return the names of the members that take none until they have been probed."""
        return tuple(self._presence.away)

    def running(self, member: str) -> tuple[MemberBatch, ...]:
        state = self._presence.get(member)
        return () if state is None else tuple(state.running)

    def ended(self, batch: MemberBatch, seconds: float, now: float) -> tuple[WorkPiece, ...]:
        """Learn from a step; return its pieces whose works live, none if it comes too late."""
        state = self._presence.free(batch)
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
        state = self._presence.free(batch)
        if state is None:
            return ()
        batches = [batch]
        state.failures += 1
        if has_changed:
            batches += state.running
            state.running.clear()
        if has_changed or state.failures >= MOST_FAILURES:
            self._presence.suspend(batch.member)
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
        if self._presence.free(batch) is None:
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
        if self._presence.free(batch) is None:
            return ()
        self._presence.suspend(batch.member)
        return self._retry(self._without(batch), lambda _: True)

    def lose(self, member: str) -> tuple[WorkPiece, ...]:
        """Forget a member; return pieces that were lost ``MOST_LOSSES`` times, whose works end."""
        state = self._presence.lose(member)
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
        """Let a member take nothing until it joins."""
        self._presence.suspend(member)

    def pause(self, member: str, until: float) -> None:
        """Let a member take nothing before a time; its running steps go on."""
        state = self._presence.get(member)
        if state is not None:
            state.paused_until = max(state.paused_until, until)

    def paused_until(self, member: str) -> float:
        """Return before when a member that is not away takes nothing."""
        state = self._members.get(member)
        return 0.0 if state is None else state.paused_until

    def rejoin(self, spec: MemberSpec) -> None:
        """Let a member that was away take work again, with a new estimate of its speed."""
        if self._presence.rejoin(spec):
            for work in self._works.values():
                if work.admits(spec.name):
                    work.alone_since = None

    def silent(self, now: float) -> list[MemberBatch]:
        """Return the steps of members elsewhere that should be given up.

        That is one without an answer for too long, and one so late that others have done all of it.
        """
        found: list[MemberBatch] = []
        for state in self._presence.states():
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

    def _alone_until(self, now: float) -> dict[WorkId, float]:
        """Return until when each work that no present member may take waits for one."""
        if self._presence.is_complete and not self._num_restricted:
            return {}
        until: dict[WorkId, float] = {}
        for work in self._works.values():
            if not work.todo or any(map(work.admits, self._members)):
                work.alone_since = None
                continue
            if work.alone_since is None:
                work.alone_since = now
            can_return = any(map(work.admits, self._presence.away))
            until[work.id] = work.alone_since + self._limits.absent_s if can_return else now
        return until

    def _share_late(self, now: float) -> None:
        """Queue pieces of late steps once more, where another member is free for them."""
        free = {name for name, state in self._members.items() if state.is_free(now)}
        if not free:
            return
        for state in self._presence.states():
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
        for state in self._presence.states():
            for batch in state.running:
                late_at = self._limits.late_at(batch)
                if late_at > now and (len(self._members) > 1 or not state.spec.on_cores):
                    times.append(late_at)
                if not state.spec.on_cores:
                    times.append(self._limits.silent_at(batch, self._slo_s, self._hang_s))
        return [at for at in times if at < inf]

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
