"""Supervision of a group's members: silent steps, failures, probes and losses.

Everything here is called under the group's lock.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from rag_accel.clock import Clock
from rag_accel.engine_api import Health
from rag_accel.engines.devices.attendance import Attendance, Reason, reason_of
from rag_accel.engines.devices.joining import Joined, Joining, NotJoined
from rag_accel.engines.devices.limits import MemberLimits
from rag_accel.engines.devices.members import MemberChangedError
from rag_accel.engines.devices.pieces import WorkPiece
from rag_accel.engines.devices.placement import Placement
from rag_accel.engines.devices.plan import MemberBatch
from rag_accel.engines.devices.probing import DueComparison, MemberProber
from rag_accel.engines.devices.returns import MOST_FAILURES
from rag_accel.engines.devices.worker import MemberWorker, ProbeTask, Reports, Task
from rag_accel.errors import EngineLostError, RemoteEngineError

logger = logging.getLogger("rag_accel.engines")


class UpkeepReports(Reports, Protocol):
    """The events of members that a group handles."""

    def report_failed(self, pieces: Sequence[WorkPiece], error: BaseException) -> None:
        """End the works of pieces that no member computes."""
        ...

    def count(self, member: str, event: str, number: int) -> None:
        """Count events of a member."""
        ...

    def forget_vectors(self) -> None:
        """Forget kept vectors, some of which may be those of another model."""
        ...


class Upkeep:
    """The workers of a group's members, and which of them take part.

    Args:
        joining: the members that joined and those that did not.
        placement: the queue and the members' steps.
        group: told of steps, and of works that ended with an error.
        prober: compares members again.
        clock: the time.
        limits: when members are silent and probed.
        step_timeout_s: after so much time a step of a member here is lost, and the member with it.
    """

    def __init__(
        self,
        joining: Joining,
        placement: Placement,
        group: UpkeepReports,
        prober: MemberProber,
        *,
        clock: Clock,
        limits: MemberLimits,
        step_timeout_s: float,
    ) -> None:
        self.attendance = Attendance(joining, limits)
        self._unreached = dict(joining.unreached)
        self._placement = placement
        self._group = group
        self._clock = clock
        self._hang_s = step_timeout_s
        self._here = {joined.spec.name for joined in joining.joined if joined.spec.on_cores}
        self._workers = {
            joined.spec.name: MemberWorker(
                joined.member,
                joining.dimensions,
                clock,
                group,
                prober,
                DueComparison(clock, limits.compare_every_s, limits.compare_every_texts),
                joined.spec.in_flight,
            )
            for joined in joining.joined
        }

    def await_unreached(self) -> None:
        """Have members probed that gave no answer when the group was made; called once."""
        for name, found in self._unreached.items():
            self._placement.suspend(name)
            self._suspend(name, Reason(found.why, found.why))

    def put(self, task: Task) -> None:
        """Let a member compute."""
        self._workers[task.batch.member].put(task)

    def close(self, timeout_s: float) -> None:
        """Close the members and wait for their threads, not for those of members that left."""
        for worker in self._workers.values():
            worker.stop()
        end = self._clock.now() + timeout_s
        for name, worker in self._workers.items():
            is_left = self.attendance.has_left(name)
            if not worker.join(0.0 if is_left else max(0.0, end - self._clock.now())):
                logger.warning("member %s still computes while its group is closed", name)

    def health(self, name: str) -> Health:
        """Return the health of the group, and of each member as its part."""
        until = {member: self._placement.paused_until(member) for member in self._workers}
        return self.attendance.health(name, until, self._clock.now())

    def failed(self, batch: MemberBatch, error: BaseException) -> None:
        """Let others try a step that raised; its member is probed after several, or is lost."""
        name = batch.member
        if isinstance(error, EngineLostError):
            self._lose(name, error, "lost: ")
            return
        was = self._placement.members
        has_changed = isinstance(error, MemberChangedError)
        if has_changed:
            self._group.forget_vectors()
        final = self._placement.failed(batch, has_changed=has_changed)
        self._group.report_failed(final, error)
        if name in was and name not in self._placement.members:
            many = "" if has_changed else f"{MOST_FAILURES} failed steps in a row, the last: "
            self._suspend(name, reason_of(error, many))

    def probed(self, member: str, found: Joined | NotJoined) -> None:
        """Let a member that was away take work again, ask it later, or lose it.

        One that has never been reached stays out if it answers as another model.
        """
        if member not in self._placement.absent:
            return
        if isinstance(found, Joined):
            self._placement.rejoin(found.spec)
            self.attendance.rejoin(found)
            self._group.count(member, "returned", 1)
            logger.warning("member %s takes part in its device group again", member)
            return
        if found.is_other_model:
            self._group.forget_vectors()
        if self.attendance.is_awaited(member) and not found.is_unreached:
            self._placement.lose(member)
            self.attendance.stay_out(member, found.why)
            logger.warning("member %s stays out of its device group: %s", member, found.why)
            self._workers[member].stop()
        elif member in self._here:
            error = EngineLostError("a member fails texts that it could embed", found=found.why)
            self._lose(member, error, f"{MOST_FAILURES} failed steps in a row, and a probe: ")
        else:
            self._suspend(member, Reason(found.why, found.why))

    def give_up(self, now: float) -> None:
        """Wait no longer for members elsewhere that are silent."""
        for batch in self._placement.silent(now):
            name, waited_s = batch.member, now - batch.began
            error = RemoteEngineError(
                "a member did not answer in time",
                where=f"member {name}",
                found=f"nothing for {waited_s:.1f} s",
                hint="it is asked again by itself; raise MemberLimits.silent_s for a slow server",
            )
            was = self._placement.members
            self._group.report_failed(self._placement.give_up(batch), error)
            self._workers[name].interrupt()
            self._group.count(name, "silent_steps", 1)
            if name in was:
                why = f"silent for {waited_s:.1f} s"
                self._suspend(name, Reason(why, why))

    def hang_at(self) -> list[float]:
        """Return when members here that compute are lost; those elsewhere are given up."""
        batches = [batch for name in self._here for batch in self._placement.running(name)]
        return [batch.began + self._hang_s for batch in batches]

    def lose_what_hangs(self) -> None:
        """Lose members here whose step does not end."""
        now = self._clock.now()
        for name in self._here:
            for batch in self._placement.running(name):
                if now - batch.began >= self._hang_s:
                    error = EngineLostError("a step did not end", where=f"member {name}")
                    self._lose(name, error, "lost: ")

    def unanswered_error(self, now: float, admitted: frozenset[str] | None) -> EngineLostError:
        """Return the error of a work that no present member may take.

        Args:
            now: the time.
            admitted: the members that may be given its texts, None for all.
        """
        away = self._placement.absent
        is_left = any(admitted is None or name in admitted for name in away)
        hint = "make another accelerator once a device is there again"
        if is_left:
            hint = "members that are paused are asked again by themselves"
        return EngineLostError(
            f"no member of the device group {'answers' if is_left else 'is left'}",
            found=self.attendance.reasons(now, admitted),
            hint=hint,
        )

    def _suspend(self, name: str, why: Reason) -> None:
        """Have a member probed before it is given work again."""
        is_first = not self.attendance.is_away(name)
        after_s = self.attendance.suspend(name, why, self._clock.now())
        level = logging.WARNING if is_first else logging.DEBUG
        logger.log(level, "member %s pauses and is asked again: %s", name, why.text)
        self._workers[name].put(ProbeTask(after_s))

    def _lose(self, name: str, error: BaseException, before: str) -> None:
        if self.attendance.has_left(name):
            return
        self._group.report_failed(self._placement.lose(name), error)
        why = reason_of(error, before)
        self.attendance.leave(name, why)
        self._group.count(name, "left", 1)
        logger.warning("member %s leaves its device group: %s", name, why.text)
        self._workers[name].stop()
