"""One embedder on several devices: an engine with a worker for each member.

The scheduler sees one engine. A work is cut into pieces, and a piece is bound to a member when that
member is free (``placement.py``), on the thread that submits or on that of the member whose step
has just ended. Members that fail, fall silent or hang are probed again, or leave.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from math import inf
from typing import Any, TypeAlias

import numpy as np

from rag_accel.clock import Clock, MonotonicClock
from rag_accel.engine_api import (
    Capability,
    EngineOutput,
    EngineProfile,
    EngineRequest,
    Health,
    LatencyModel,
    PrimitiveKind,
    StepBudget,
    TextBatch,
    WorkId,
)
from rag_accel.engines.devices.admission import Admission
from rag_accel.engines.devices.attendance import Attendance, Reason, reason_of
from rag_accel.engines.devices.joining import (
    DueComparison,
    Joined,
    Joining,
    MemberProber,
    NotJoined,
)
from rag_accel.engines.devices.members import (
    Member,
    MemberChangedError,
    admitted_members,
    form_of,
    no_member_admits,
)
from rag_accel.engines.devices.pieces import WorkPiece
from rag_accel.engines.devices.placement import MOST_FAILURES, Placement
from rag_accel.engines.devices.plan import MemberBatch, MemberLimits
from rag_accel.engines.devices.worker import MemberWorker, Part, ProbeTask, Task
from rag_accel.engines.embedding.checked_vectors import Vector
from rag_accel.engines.embedding.encoder_engine import payload_fault
from rag_accel.engines.embedding.sentence_encoder import Role
from rag_accel.engines.embedding.vector_cache import KnownTexts, VectorCache, kept_in_front
from rag_accel.engines.replicas.parts_engine import PartJob, PartsEngine
from rag_accel.errors import (
    EngineLostError,
    MemberPausedError,
    RemoteEngineError,
)

logger = logging.getLogger("rag_accel.engines")

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

MOST_WORK = 1 << 20
"""Texts that may be queued or computed at once."""

_MOST_WAIT_S = 3600.0


@dataclass(slots=True, eq=False, kw_only=True)
class MemberJob(PartJob[str]):
    """One submitted work. Equal only to itself."""

    role: Role
    #: names of the members that may be given its texts; None for all
    admitted: frozenset[str] | None
    #: estimated tokens of those that have to be computed
    costs: list[int]
    #: those that have to be computed, and their vectors
    texts: tuple[str, ...]
    vectors: Vector
    #: of all texts, where vectors are kept
    known: KnownTexts | None = None

    def value(self, kept: VectorCache | None) -> Vector:
        """Return the caller's vectors of all texts, and keep those that were computed."""
        form = form_of(self.request.payload)
        vectors = self._joined(kept)
        return vectors if form is None else form.finished(vectors)

    def _joined(self, kept: VectorCache | None) -> Vector:
        if self.known is None or kept is None or not self.known.keys:
            return self.vectors
        kept.keep(self.known, self.vectors)
        return np.array(self.known.joined(self.vectors))


JobReport: TypeAlias = tuple[MemberJob, EngineOutput]
"""The end of a work, put into the outbox by the thread of a member."""


class DeviceGroup(PartsEngine[str, MemberJob, JobReport]):
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
        limits = limits or MemberLimits()
        prober = MemberProber(self._clock, tolerance, threads, limits)
        joining = prober.join(members, reproducible=reproducible, awaits=True)
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
        self._attendance = Attendance(joining, limits)
        self._hang_s = step_timeout_s
        #: the members that compute on this machine's cores
        self._here = {joined.spec.name for joined in joining.joined if joined.spec.on_cores}
        self._dimensions = joining.dimensions
        self._workers = {
            joined.spec.name: MemberWorker(
                joined.member,
                joining.dimensions,
                self._clock,
                self,
                prober,
                DueComparison(self._clock, limits.compare_every_s, limits.compare_every_texts),
                joined.spec.in_flight,
            )
            for joined in joining.joined
        }
        #: None if no request is refused
        self._admission: Admission | None = None
        if refuses_late and slo_s is not None:
            self._admission = Admission(self._placement, slo_s)
        engines = [getattr(member, "engine", None) for member in self._members.values()]
        #: in front of all members, since any of them may compute a text
        self._kept = kept_in_front([getattr(engine, "kept", None) for engine in engines])
        super().__init__(group_profile(joining.joined), "DeviceGroup")
        self._cores = 1
        self._most_cores = 1
        self._contended = False
        #: when a waiting step checks the members again without an event
        self._wakes_at = inf
        #: guards placement, jobs and counts against the members' threads
        self._lock = threading.Lock()
        with self._lock:
            self._await(joining)

    @property
    def counts(self) -> Mapping[str, int]:
        """Return steps, texts, tokens, busy milliseconds, failed and refused steps by member.

        ``texts_past_slo`` came while the queue would have ended later than ``slo_s``.
        """
        with self._lock:
            kept = self._kept.counts if self._kept is not None else {}
            return {**self._counts, **kept}

    def describe_parts(self) -> tuple[str, ...]:
        """Return a line for each member: how near its vectors are, or why it takes no part."""
        with self._lock:
            return self._attendance.lines(self._clock.now())

    def health(self) -> Health:
        """Return the health of the group and of each member; ready while one member is."""
        with self._lock:
            parts = self._attendance.health(self._placement.paused_until, self._clock.now())
            return self._health(parts, "no member takes work now")

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
            super().submit(work)

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        self._require_usable()
        if self._jobs:
            with self._lock:
                self._cores = budget.threads
                self._most_cores = max(self._most_cores, budget.threads)
                self._contended = budget.threads < self._most_cores
                self._lose_what_hangs()
                self._bind()
        outputs = super().step(budget)
        self._wakes_at = inf
        return outputs

    def cancel(self, ids: Sequence[WorkId]) -> None:
        with self._lock:
            super().cancel(ids)

    def _end_parts(self) -> None:
        with self._lock:
            self._jobs.clear()
            self._forget_vectors()
            self._placement.drop_all()
        for worker in self._workers.values():
            worker.stop()
        end = self._clock.now() + CLOSE_S
        for name, worker in self._workers.items():
            has_left = self._attendance[name].has_left
            if not worker.join(0.0 if has_left else max(0.0, end - self._clock.now())):
                logger.warning("member %s still computes while its group is closed", name)

    def ended(self, task: Task, vectors: list[Vector], seconds: float) -> None:
        """Store the vectors of a step; the member's thread."""
        with self._lock:
            if self._closed:
                return
            done = self._placement.ended(task.batch, seconds, self._clock.now())
            self._counts.count_step(task, seconds)
            found = dict(zip(task.batch.pieces, vectors, strict=True))
            for piece in done:
                self._jobs[piece.work].vectors[list(piece.positions)] = found[piece]
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
            self._counts.count(task.batch.member, "failed_steps")
            self._fail_step(task.batch, error)
            self._bind_during_step()

    def probed(self, member: str, found: Joined | NotJoined) -> None:
        """Let a member that was away take work again, or ask it later; the member's thread."""
        with self._lock:
            if not self._closed:
                self._probed(member, found)
                self._bind_during_step()

    def _refused(self, task: Task, error: MemberPausedError) -> None:
        """Pause a member that refused a step, and let others take it."""
        self._counts.count(task.batch.member, "refused_steps")
        until = self._clock.now() + (error.retry_after_s or 0.0)
        self._report_failed(self._placement.refused(task.batch, until), error)
        self._bind()
        self._outbox.interrupt()  # a waiting step does not know when the pause ends

    def _job(self, request: EngineRequest) -> MemberJob:
        payload = self._checked_payload(request, TextBatch, self._jobs)
        if (fault := payload_fault(payload)) is not None:
            raise fault
        form, role, known = form_of(payload), payload.role, None
        admitted = self._admitted(role, request.namespace)
        if admitted is not None and not admitted:
            raise no_member_admits(role, request.namespace)
        texts = payload.texts if form is None else form.texts(payload.texts)
        if payload.keep and self._kept is not None:
            known = self._kept.look_up_texts(request.namespace, role, texts)
            texts = known.missing_of(texts)
        vectors = np.empty((len(texts), self._dimensions[role]), dtype=np.float32)
        costs = [self._estimate(text) for text in texts]
        return MemberJob(
            request=request,
            role=role,
            admitted=admitted,
            costs=costs,
            texts=texts,
            vectors=vectors,
            known=known,
        )

    def _start(self, jobs: Sequence[MemberJob]) -> None:
        now = self._clock.now()
        for job in jobs:
            request = job.request
            if self._admission is not None:
                self._admission.brought(request.request_id, request.id, job.costs, now)
            if not job.costs:
                self._end(request.id)
                continue
            self._placement.add(
                request.id,
                job.costs,
                now,
                request=request.request_id,
                depth=request.depth,
                arrived_at=request.arrived_at,
                deadline=request.deadline,
                admitted=job.admitted,
            )
        if self._placement.late_by_s(0, now, self._cores, self._contended) > 0:
            self._counts["texts_past_slo"] += sum(len(job.texts) for job in jobs)
        self._bind()

    def _abort(self, jobs: Sequence[MemberJob]) -> None:
        gone = [job.request.id for job in jobs]
        self._placement.cancel(gone)
        if self._admission is not None:
            self._admission.forgotten(gone)

    def _outputs_of(self, report: JobReport) -> Iterable[EngineOutput]:
        job, output = report
        with self._lock:
            if self._jobs.get(output.id) is not job:  # it was cancelled after its end
                return ()
            del self._jobs[output.id]
            return (output,)

    def _admitted(self, role: Role, namespace: str) -> frozenset[str] | None:
        """Return the names of the members that may be given texts, None if all may."""
        return admitted_members(self._members.values(), role, namespace)

    def _bind(self) -> None:
        """Bind pieces to free members."""
        now = self._clock.now()
        self._give_up_silent(now)
        for id in self._placement.unanswered(now):
            self._report_error(id, self._unanswered_error(now, self._jobs[id].admitted))
        for batch in self._placement.bind(now, self._cores, self._contended):
            self._workers[batch.member].put(Task(batch, tuple(map(self._part, batch.pieces))))

    def _part(self, piece: WorkPiece) -> Part:
        job = self._jobs[piece.work]
        texts = tuple(job.texts[at] for at in piece.positions)
        return Part(texts, job.role, job.request.trace)

    def _bind_during_step(self) -> None:
        """Bind on a member's thread: a waiting step may have to wake sooner."""
        self._bind()
        again = self._placement.look_again_at(self._clock.now())
        if again is not None and again < self._wakes_at < inf:
            self._outbox.interrupt()

    def _wait_s(self, most: float | None) -> float:
        """Return the seconds a step may wait before the next check of members."""
        with self._lock:
            now = self._clock.now()
            batches = [batch for name in self._here for batch in self._placement.running(name)]
            times = [batch.began + self._hang_s - now for batch in batches]
            again = self._placement.look_again_at(now)
            if again is not None:
                times.append(again - now)
            if most is not None:
                times.append(most)
            wait_s = min(_MOST_WAIT_S, max(0.0, min(times, default=_MOST_WAIT_S)))
            self._wakes_at = now + wait_s
            return wait_s

    def _report_ended(self, work_items: set[WorkId]) -> None:
        now = self._clock.now()
        for id in work_items:
            if not self._placement.has(id):
                if self._admission is not None:
                    self._admission.ended(id, now)
                self._end(id)

    def _end(self, id: WorkId) -> None:
        """Report a work whose vectors are all there."""
        job = self._jobs[id]
        self._outbox.put([(job, EngineOutput(id, "final", job.value(self._kept)))])

    def _report_failed(self, pieces: Sequence[WorkPiece], error: BaseException) -> None:
        for id in dict.fromkeys(piece.work for piece in pieces):
            self._report_error(id, error)

    def _forget_vectors(self) -> None:
        if self._kept is not None:
            self._kept.clear()

    def _report_error(self, id: WorkId, error: BaseException) -> None:
        if self._admission is not None:
            self._admission.forgotten([id])
        self._outbox.put([(self._jobs[id], EngineOutput(id, "error", error=error))])

    def _await(self, joining: Joining) -> None:
        """Have members probed that gave no answer when the group was made."""
        for name, found in joining.unreached.items():
            self._placement.suspend(name)
            self._suspend(name, Reason(found.why, found.why))

    def _fail_step(self, batch: MemberBatch, error: BaseException) -> None:
        """Let others try a step that raised; its member is probed after several, or is lost."""
        name = batch.member
        if isinstance(error, EngineLostError):
            self._lose(name, error, "lost: ")
            return
        was = self._placement.members
        has_changed = isinstance(error, MemberChangedError)
        if has_changed:
            self._forget_vectors()
        final = self._placement.failed(batch, has_changed=has_changed)
        self._report_failed(final, error)
        if name in was and name not in self._placement.members:
            many = "" if has_changed else f"{MOST_FAILURES} failed steps in a row, the last: "
            self._suspend(name, reason_of(error, many))

    def _probed(self, member: str, found: Joined | NotJoined) -> None:
        """Let a member that was away take work again, ask it later, or lose it.

        One that has never been reached stays out if it answers as another model.
        """
        if member not in self._placement.absent:
            return
        if isinstance(found, Joined):
            self._placement.rejoin(found.spec)
            self._attendance.rejoin(found)
            self._counts.count(member, "returned")
            logger.warning("member %s takes part in its device group again", member)
            return
        if found.is_other_model:
            self._forget_vectors()
        if self._attendance[member].is_awaited and not found.is_unreached:
            self._placement.lose(member)
            self._attendance.end(member, "stays out", Reason(found.why, found.why))
            logger.warning("member %s stays out of its device group: %s", member, found.why)
            self._workers[member].stop()
        elif member in self._here:
            error = EngineLostError("a member fails texts that it could embed", found=found.why)
            self._lose(member, error, f"{MOST_FAILURES} failed steps in a row, and a probe: ")
        else:
            self._suspend(member, Reason(found.why, found.why))

    def _give_up_silent(self, now: float) -> None:
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
            self._report_failed(self._placement.give_up(batch), error)
            self._workers[name].interrupt()
            self._counts.count(name, "silent_steps")
            if name in was:
                why = f"silent for {waited_s:.1f} s"
                self._suspend(name, Reason(why, why))

    def _lose_what_hangs(self) -> None:
        """Lose members here whose step does not end."""
        now = self._clock.now()
        for name in self._here:
            for batch in self._placement.running(name):
                if now - batch.began >= self._hang_s:
                    error = EngineLostError("a step did not end", where=f"member {name}")
                    self._lose(name, error, "lost: ")

    def _unanswered_error(self, now: float, admitted: frozenset[str] | None) -> EngineLostError:
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
            found=self._attendance.reasons(now, admitted),
            hint=hint,
        )

    def _suspend(self, name: str, why: Reason) -> None:
        """Have a member probed before it is given work again."""
        is_first = self._attendance[name].state != "paused"
        after_s = self._attendance.suspend(name, why, self._clock.now())
        level = logging.WARNING if is_first else logging.DEBUG
        logger.log(level, "member %s pauses and is asked again: %s", name, why.text)
        self._workers[name].put(ProbeTask(after_s))

    def _lose(self, name: str, error: BaseException, before: str) -> None:
        if self._attendance[name].has_left:
            return
        self._report_failed(self._placement.lose(name), error)
        why = reason_of(error, before)
        self._attendance.end(name, "has left", why)
        self._counts.count(name, "left")
        logger.warning("member %s leaves its device group: %s", name, why.text)
        self._workers[name].stop()


def group_profile(joined: Sequence[Joined]) -> EngineProfile:
    """Return the profile of a group of these members."""
    return EngineProfile(
        kinds=frozenset({PrimitiveKind.EMBEDDING}),
        max_batch=MOST_WORK,
        latency=LatencyModel(joined[0].spec.beta, joined[0].spec.alpha),
        max_threads=sum(member.spec.max_threads for member in joined),
        stepped=True,
        interruptible=True,
        pure=True,
        capabilities=frozenset({Capability.BOUNDS_ITS_WORK}),
    )
