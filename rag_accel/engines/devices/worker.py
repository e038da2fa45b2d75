"""The worker threads of one member, which take batches until the group is closed."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

from rag_accel.clock import Clock
from rag_accel.engines.devices.fidelity import checked, probe_texts
from rag_accel.engines.devices.joining import DueComparison, Joined, MemberProber, close
from rag_accel.engines.devices.members import ROLES, AbortableMember, InterruptibleMember, Member
from rag_accel.engines.devices.plan import MemberBatch
from rag_accel.engines.embedding.checked_vectors import Vector
from rag_accel.engines.embedding.sentence_encoder import Role
from rag_accel.telemetry.spans import sending_trace

if TYPE_CHECKING:
    from rag_accel.engines.devices.group import DeviceGroup


class Part(NamedTuple):
    """The texts of one piece, in the order of its positions, what they are, and their trace."""

    texts: tuple[str, ...]
    role: Role
    trace: Mapping[str, str] | None = None


class Task(NamedTuple):
    """One step of a member: the pieces that placement bound, and the texts of each."""

    batch: MemberBatch
    parts: tuple[Part, ...]


class ProbeTask(NamedTuple):
    """A comparison of a member that is away, after so many seconds."""

    after_s: float


class MemberWorker:
    """The threads of one member, one for each step in flight, started with the first task.

    Args:
        member: whose ``embed`` and ``close`` run on the threads.
        dimensions: components of a vector of each role.
        clock: measures steps.
        group: told of each step, on the thread of the worker.
        prober: compares the member again.
        due: when a member elsewhere is compared before a step.
        in_flight: most steps at once.
    """

    def __init__(
        self,
        member: Member,
        dimensions: dict[Role, int],
        clock: Clock,
        group: DeviceGroup,
        prober: MemberProber,
        due: DueComparison,
        in_flight: int = 1,
    ) -> None:
        self.member = member
        self._dimensions = dimensions
        self._clock = clock
        self._group = group
        self._prober = prober
        self._due = due
        self._in_flight = in_flight
        self._orders: SimpleQueue[Task | ProbeTask | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._num_open = in_flight
        self._is_stopped = threading.Event()
        #: guards the number of threads that have not ended
        self._lock = threading.Lock()

    def put(self, order: Task | ProbeTask) -> None:
        """Let the member compute, or be compared again."""
        if not self._threads:
            for number in range(self._in_flight):
                suffix = f"-{number + 1}" if number else ""
                name = f"rag-accel-member-{self.member.name}{suffix}"
                thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._threads.append(thread)
            for thread in self._threads:
                thread.start()
        self._orders.put(order)

    def interrupt(self) -> None:
        """Let the running calls of a member that can do so raise soon."""
        if isinstance(self.member, InterruptibleMember):
            self.member.interrupt()

    def stop(self) -> None:
        """Ask the threads to close the member and to end, after the running steps.

        A member that can end its running step is told to: nobody waits for it any more.
        """
        self._is_stopped.set()
        if not self._threads:
            close(self.member)
        elif isinstance(self.member, AbortableMember):
            self.member.abort()
        for _ in self._threads:
            self._orders.put(None)

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the threads; tell whether they have ended."""
        end = self._clock.now() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, end - self._clock.now()))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            if isinstance(order, Task):
                self._step(order)
            elif not self._is_stopped.wait(order.after_s):
                self._probe()
            # The next get() may block for long: no text may stay alive with it.
            del order
        with self._lock:
            self._num_open -= 1
            is_last = not self._num_open
        if is_last:
            close(self.member)

    def _probe(self) -> None:
        found = self._prober.rejoined(self.member)
        if isinstance(found, Joined):
            self._due.compared()
        self._group.probed(self.member.name, found)

    def _step(self, task: Task) -> None:
        try:
            self._require_same()
            began = self._clock.now()
            vectors = self._embedded(task)
            seconds = self._clock.now() - began
        except BaseException as error:
            self._due.failed()
            self._group.failed(task, error)
        else:
            self._group.ended(task, vectors, seconds)

    def _require_same(self) -> None:
        """Compare a member elsewhere, where that is due, before it is given any text."""
        if self.member.max_threads == 0 and self._due.is_due:
            self._prober.require_same(self.member)
            self._due.compared()

    def _embedded(self, task: Task) -> list[Vector]:
        """Return the vectors of each part, computed together for each role."""
        found: dict[int, Vector] = {}
        for role in ROLES:
            places = [at for at, part in enumerate(task.parts) if part.role == role]
            texts = [text for at in places for text in task.parts[at].texts]
            if not texts:
                continue
            trace = task.parts[places[0]].trace
            is_shared = any(task.parts[at].trace != trace for at in places)  # then nobody's
            with sending_trace(None if is_shared else trace):
                vectors = self._vectors(texts, role, task.batch.threads)
            start = 0
            for at in places:
                stop = start + len(task.parts[at].texts)
                found[at] = vectors[start:stop]
                start = stop
        return [found[at] for at in range(len(task.parts))]

    def _vectors(self, texts: list[str], role: Role, threads: int) -> Vector:
        """Return checked vectors, and compare that of a probe among them where one is due."""
        probe = None
        if getattr(self.member, "may_change", False):
            probe = self._due.probe_with(len(texts), self.member.max_texts)
        if probe is None:
            values = self.member.embed(texts, role, threads)
            return checked(values, len(texts), self._dimensions[role])
        values = self.member.embed([*texts, probe_texts()[probe]], role, threads)
        vectors = checked(values, len(texts) + 1, self._dimensions[role])
        self._prober.require_same_vector(self.member, role, probe, vectors[-1])
        self._due.compared()
        return vectors[:-1]
