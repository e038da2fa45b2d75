"""One embedder on several devices: an engine with a worker for each member.

The scheduler sees one engine. A work is cut into pieces, and a piece is bound to a member when that
member is free (``placement.py``), on the thread that submits or on that of the member whose step
has just ended.
"""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from math import inf
from typing import Any

from rag_accel.clock import Clock, MonotonicClock
from rag_accel.engine_api import (
    EngineOutput,
    EngineRequest,
    Health,
    StepBudget,
    WorkId,
)
from rag_accel.engines.bases import OwnEngine
from rag_accel.engines.devices.admission import Admission
from rag_accel.engines.devices.admitting import admitted_members, no_member_admits
from rag_accel.engines.devices.joining import Joined, NotJoined, join
from rag_accel.engines.devices.limits import MemberLimits
from rag_accel.engines.devices.member_jobs import MemberJobs, group_profile
from rag_accel.engines.devices.members import Member
from rag_accel.engines.devices.pieces import WorkPiece
from rag_accel.engines.devices.placement import Placement
from rag_accel.engines.devices.probing import MemberProber
from rag_accel.engines.devices.upkeep import Upkeep
from rag_accel.engines.devices.worker import Task
from rag_accel.engines.embedding.checked_vectors import Vector
from rag_accel.engines.embedding.sentence_encoder import Role
from rag_accel.engines.embedding.vector_cache import kept_in_front
from rag_accel.errors import ClosedError, ForkedError, MemberPausedError

_NO_WORD = re.compile(r"\W+")


class MemberCounts(Counter[str]):
    """Counters named ``<member>_<event>``, and those of the group."""

    def count(self, member: str, event: str, number: int = 1) -> None:
        self[f"{_NO_WORD.sub('_', member)}_{event}"] += number

    def count_step(self, task: Task, seconds: float) -> None:
        """Count a step that has ended."""
        name = task.batch.member
        self.count(name, "steps")
        self.count(name, "texts", sum(len(part.texts) for part in task.parts))
        self.count(name, "tokens", task.batch.cost)
        self.count(name, "busy_ms", round(seconds * 1000))


CLOSE_S = 5.0
"""How long closing waits for the members' running steps."""

_MOST_WAIT_S = 3600.0


class DeviceGroup(OwnEngine):
    """An engine for EMBEDDING over several members that compute the same vectors.

    Final value: ``[len(texts), dim], float32``, rows in the order of the texts. Work ends in
    ``error`` with what its last member raised, where one of its pieces failed on all of them, and
    with EngineLostError where no member answers for too long or none is left.

    A member that fails several steps in a row, falls silent or answers as another model takes no
    work until it has embedded probes as it did before. One elsewhere is probed again and again, one
    on this machine's cores once. One elsewhere that gives no answer when the group is made is
    probed in the same way, and takes part once it has been reached.

    Args:
        members: the members, most preferred first, each with a name of its own.
        slo_s: by when an embedding without a deadline should have ended, in seconds after it came.
        tolerance: how far vectors of a member may be from the first's, in any component; members
            within 1e-6 join without it.
        reproducible: only the first member takes part.
        refuses_late: new requests whose texts would end later than ``slo_s`` are refused
            (``admission.py``).
        step_timeout_s: a longer step marks its member lost; one elsewhere is probed first.
        limits: when members are late, silent, probed and waited for.
        threads: with how many threads members here compute while they join.
        clock: measures steps, and is that of ``EngineRequest.deadline``.

    Raises:
        ConfigError: no member, two of one name, or a first member that cannot embed; one that gives
            no answer may come later if another can embed.
    """

    def __init__(
        self,
        members: Sequence[Member],
        *,
        slo_s: float | None = None,
        tolerance: float | None = None,
        reproducible: bool = False,
        refuses_late: bool = False,
        step_timeout_s: float = 120.0,
        threads: int = 1,
        limits: MemberLimits | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or MonotonicClock()
        joining = join(
            members,
            self._clock,
            tolerance=tolerance,
            reproducible=reproducible,
            threads=threads,
            awaits=True,
        )
        limits = limits or MemberLimits()
        self._members = {joined.spec.name: joined.member for joined in joining.joined}
        #: the vectors of the probes with which members were compared, by role
        self.expected: Mapping[Role, Vector] = joining.expected
        reference = self._members[joining.reference]
        engine = getattr(reference, "engine", None)
        #: the SentenceTransformer with which members were compared; None if it is not here
        self.reference_model: Any = getattr(engine, "model", None)
        self._estimate = joining.joined[0].member.estimate
        self._counts = MemberCounts()
        self._placement = Placement(
            [joined.spec for joined in joining.joined], slo_s, limits, step_timeout_s=step_timeout_s
        )
        self._upkeep = Upkeep(
            joining,
            self._placement,
            self,
            MemberProber(joining, self._clock, tolerance, threads, limits),
            clock=self._clock,
            limits=limits,
            step_timeout_s=step_timeout_s,
        )
        #: None if no request is refused
        self._admission: Admission | None = None
        if refuses_late and slo_s is not None:
            self._admission = Admission(self._placement, slo_s)
        engines = [getattr(member, "engine", None) for member in self._members.values()]
        #: in front of all members, since any of them may compute a text
        self._kept = kept_in_front([getattr(engine, "kept", None) for engine in engines])
        super().__init__(group_profile(joining.joined))
        self._rejected: list[EngineOutput] = []
        self._jobs = MemberJobs(joining.dimensions, self._kept)
        self._cores = 1
        self._most_cores = 1
        self._contended = False
        #: when a waiting step checks the members again without an event
        self._wakes_at = inf
        #: guards placement, jobs and counts against the members' threads
        self._lock = threading.Lock()
        self._pid = os.getpid()
        with self._lock:
            self._upkeep.await_unreached()

    @property
    def counts(self) -> Mapping[str, int]:
        """Return steps, texts, tokens, busy milliseconds, failed and refused steps by member.

        ``texts_past_slo`` came while the queue would have ended later than ``slo_s``.
        """
        with self._lock:
            kept = self._kept.counts if self._kept is not None else {}
            return {**self._counts, **kept}

    @property
    def num_unfinished(self) -> int:
        """Return the number of works whose end has not been reported."""
        return len(self._jobs)

    def describe_parts(self) -> tuple[str, ...]:
        """Return a line for each member: how near its vectors are, or why it takes no part."""
        with self._lock:
            return self._upkeep.attendance.lines(self._clock.now())

    def health(self) -> Health:
        """Return the health of the group and of each member; ready while one member is."""
        with self._lock:
            return self._upkeep.health(type(self).__name__)

    def admits(self, role: Role, namespace: str) -> bool:
        """Tell whether a member may be given texts of a role and a namespace."""
        return self._admitted(role, namespace) != frozenset()

    def retry_after_s(self, request: str, live: Set[str]) -> float:
        """Return 0 to admit a new request, else the seconds after which it should ask again.

        A group that nothing waits for takes any request: trying again would not help it.
        """
        if self._admission is None:
            return 0.0
        with self._lock:
            now = self._clock.now()
            return self._admission.retry_after_s(request, live, now, self._cores, self._contended)

    def submit(self, work: Sequence[EngineRequest]) -> None:
        self._require_usable()
        with self._lock:
            for request in work:
                try:
                    self._add(request)
                except Exception as error:  # one bad item must not reject its neighbours
                    self._rejected.append(EngineOutput(request.id, "error", error=error))
            self._count_late(work)
            self._bind()

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        self._require_usable()
        outputs, self._rejected = self._rejected, []
        if not self._jobs:
            return outputs
        with self._lock:
            self._cores = budget.threads
            self._most_cores = max(self._most_cores, budget.threads)
            self._contended = budget.threads < self._most_cores
            self._upkeep.lose_what_hangs()
            self._bind()
            wait_s = self._wait_s(budget.time_s)
            self._wakes_at = self._clock.now() + wait_s
        reports = self._jobs.wait(0.0 if outputs else wait_s)
        with self._lock:
            self._wakes_at = inf
            return outputs + self._jobs.settle(reports)

    def cancel(self, ids: Sequence[WorkId]) -> None:
        gone = set(ids)
        self._rejected = [output for output in self._rejected if output.id not in gone]
        with self._lock:
            self._jobs.cancel(gone)
            self._placement.cancel(gone)
            if self._admission is not None:
                self._admission.forgotten(gone)

    def interrupt(self) -> None:
        self._jobs.interrupt()

    def close(self) -> None:
        """Forget all work, close the members and end their threads; idempotent.

        In a forked child there are no threads, and the members are the parent's.
        """
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        with self._lock:
            self._jobs.clear()
            self._placement.drop_all()
        self._upkeep.close(CLOSE_S)

    def ended(self, task: Task, vectors: list[Vector], seconds: float) -> None:
        """Store the vectors of a step; the member's thread."""
        with self._lock:
            if self._closed:
                return
            done = self._placement.ended(task.batch, seconds, self._clock.now())
            self._counts.count_step(task, seconds)
            found = {part.piece: rows for part, rows in zip(task.parts, vectors, strict=True)}
            for piece in done:
                self._jobs.store(piece, found[piece])
            self._report_ended({piece.work for piece in done})
            self._bind_during_step()

    def failed(self, task: Task, error: BaseException) -> None:
        """Let another member try what failed, or end it; the member's thread."""
        with self._lock:
            if self._closed:  # all work is forgotten, and members were told to end theirs
                return
            if isinstance(error, MemberPausedError):
                self._refused(task, error)
                return
            self.count(task.batch.member, "failed_steps", 1)
            self._upkeep.failed(task.batch, error)
            self._bind_during_step()

    def probed(self, member: str, found: Joined | NotJoined) -> None:
        """Let a member that was away take work again, or ask it later; the member's thread."""
        with self._lock:
            if not self._closed:
                self._upkeep.probed(member, found)
                self._bind_during_step()

    def _refused(self, task: Task, error: MemberPausedError) -> None:
        """Pause a member that refused a step, and let others take it."""
        self.count(task.batch.member, "refused_steps", 1)
        until = self._clock.now() + (error.retry_after_s or 0.0)
        self.report_failed(self._placement.refused(task.batch, until), error)
        self._bind()
        self._jobs.interrupt()  # a waiting step does not know when the pause ends

    def _add(self, request: EngineRequest) -> None:
        self._jobs.require_valid(request)
        role = request.payload.role
        admitted = self._admitted(role, request.namespace)
        if admitted is not None and not admitted:
            raise no_member_admits(role, request.namespace)
        job = self._jobs.make(request)
        costs = [self._estimate(text) for text in job.texts]
        self._jobs.add(job)
        now = self._clock.now()
        if self._admission is not None:
            self._admission.brought(request.request_id, request.id, costs, now)
        if not costs:
            self._jobs.end(request.id)
            return
        self._placement.add(
            request.id,
            costs,
            now,
            request=request.request_id,
            depth=request.depth,
            arrived_at=request.arrived_at,
            deadline=request.deadline,
            admitted=admitted,
        )

    def _admitted(self, role: Role, namespace: str) -> frozenset[str] | None:
        """Return the names of the members that may be given texts, None if all may."""
        return admitted_members(self._members.values(), role, namespace)

    def _bind(self) -> None:
        """Bind pieces to free members."""
        now = self._clock.now()
        self._upkeep.give_up(now)
        for id in self._placement.unanswered(now):
            job = self._jobs[id]
            admitted = self._admitted(job.role, job.request.namespace)
            error = self._upkeep.unanswered_error(now, admitted)
            self._report_error(id, error)
        for batch in self._placement.bind(now, self._cores, self._contended):
            self._upkeep.put(self._jobs.task(batch))

    def _bind_during_step(self) -> None:
        """Bind on a member's thread: a waiting step may have to wake sooner."""
        self._bind()
        again = self._placement.look_again_at(self._clock.now())
        if again is not None and again < self._wakes_at < inf:
            self._jobs.interrupt()

    def _wait_s(self, time_s: float | None) -> float:
        """Return the seconds a step may wait before the next check of members."""
        now = self._clock.now()
        times = [at - now for at in self._upkeep.hang_at()]
        again = self._placement.look_again_at(now)
        if again is not None:
            times.append(again - now)
        if time_s is not None:
            times.append(time_s)
        return min(_MOST_WAIT_S, max(0.0, min(times, default=_MOST_WAIT_S)))

    def _report_ended(self, work_items: set[WorkId]) -> None:
        now = self._clock.now()
        for id in work_items:
            if not self._placement.has(id):
                if self._admission is not None:
                    self._admission.ended(id, now)
                self._jobs.end(id)

    def report_failed(self, pieces: Sequence[WorkPiece], error: BaseException) -> None:
        for id in dict.fromkeys(piece.work for piece in pieces):
            self._report_error(id, error)

    def forget_vectors(self) -> None:
        if self._kept is not None:
            self._kept.clear()

    def _report_error(self, id: WorkId, error: BaseException) -> None:
        if self._admission is not None:
            self._admission.forgotten([id])
        self._jobs.fail(id, error)

    def _count_late(self, work: Sequence[EngineRequest]) -> None:
        """Count texts that came while the queue would end later than the SLO."""
        late = self._placement.late_by_s(0, self._clock.now(), self._cores, self._contended)
        if late > 0:
            num_texts = self._jobs.num_texts(request.id for request in work)
            self._counts["texts_past_slo"] += num_texts

    def count(self, member: str, event: str, number: int) -> None:
        self._counts.count(member, event, number)

    def _require_usable(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedError(
                "a device group made before fork() was used in the child",
                hint="make the accelerator after the fork",
            )
        if self._closed:
            raise ClosedError("the engine is closed", where="DeviceGroup")
