"""The thread of one member: it takes batches from its group until the group is closed."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol

from rag_accel.clock import Clock
from rag_accel.engines.devices.fidelity import ROLES, checked, probe_texts
from rag_accel.engines.devices.joining import close
from rag_accel.engines.devices.members import AbortableMember, Member
from rag_accel.engines.devices.pieces import WorkPiece
from rag_accel.engines.devices.plan import MemberBatch
from rag_accel.engines.embedding.sentence_encoder import Role
from rag_accel.engines.embedding.under_way import Vector
from rag_accel.errors import MemberPausedError


@dataclass(frozen=True, slots=True)
class Part:
    """What is embedded of one piece.

    Args:
        piece: the piece.
        texts: its texts, in the order of its positions.
        role: what they are.
    """

    piece: WorkPiece
    texts: tuple[str, ...]
    role: Role


@dataclass(frozen=True, slots=True)
class Task:
    """One step of a member.

    Args:
        batch: what placement bound.
        parts: its texts; pieces whose work has gone are left out.
        must_prove: on an error, embed a probe, to show whether the member or a text is at fault.
    """

    batch: MemberBatch
    parts: tuple[Part, ...]
    must_prove: bool


class Reports(Protocol):
    """What a worker tells its group, on the worker's thread."""

    def ended(self, task: Task, vectors: list[Vector], seconds: float) -> None:
        """Take the vectors of each part, ``[texts, dim], float32``."""
        ...

    def failed(self, task: Task, error: BaseException, is_sound: bool) -> None:
        """Learn that a step raised, and whether the member still embeds a probe."""
        ...


class MemberWorker:
    """The thread of one member, started with its first task.

    Args:
        member: whose ``embed`` and ``close`` run on the thread.
        dimensions: components of a vector of each role.
        clock: measures steps.
        reports: told of each step; not kept alive by an idle thread's task.
    """

    def __init__(
        self, member: Member, dimensions: dict[Role, int], clock: Clock, reports: Reports
    ) -> None:
        self.member = member
        self._dimensions = dimensions
        self._clock = clock
        self._reports = reports
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def put(self, task: Task) -> None:
        """Let the member compute; it computes nothing else now."""
        if self._thread is None:
            name = f"rag-accel-member-{self.member.name}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()
        self._tasks.put(task)

    def stop(self) -> None:
        """Ask the thread to close the member and to end, after the running step.

        A member that can end its running step is told to: nobody waits for it any more.
        """
        if self._thread is None:
            close(self.member)
        elif isinstance(self.member, AbortableMember):
            self.member.abort()
        self._tasks.put(None)

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the thread; tell whether it has ended."""
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            self._step(task)
            # The next get() may block for long: no text may stay alive with it.
            del task
        close(self.member)

    def _step(self, task: Task) -> None:
        began = self._clock.now()
        try:
            vectors = self._embedded(task)
        except BaseException as error:
            is_paused = isinstance(error, MemberPausedError)
            is_sound = task.must_prove and not is_paused and self._is_sound(task.batch.threads)
            self._reports.failed(task, error, is_sound)
        else:
            self._reports.ended(task, vectors, self._clock.now() - began)

    def _embedded(self, task: Task) -> list[Vector]:
        """Return the vectors of each part, computed together for each role."""
        found: dict[int, Vector] = {}
        for role in ROLES:
            places = [at for at, part in enumerate(task.parts) if part.role == role]
            texts = [text for at in places for text in task.parts[at].texts]
            if not texts:
                continue
            values = self.member.embed(texts, role, task.batch.threads)
            vectors = checked(values, len(texts), self._dimensions[role])
            start = 0
            for at in places:
                stop = start + len(task.parts[at].texts)
                found[at] = vectors[start:stop]
                start = stop
        return [found[at] for at in range(len(task.parts))]

    def _is_sound(self, threads: int) -> bool:
        texts = probe_texts()[:1]
        try:
            checked(self.member.embed(texts, "query", threads), 1, self._dimensions["query"])
        except Exception:
            return False
        return True
