"""Works of a device group from their submission until their end is reported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rag_accel.engine_api import (
    Capability,
    EngineOutput,
    EngineProfile,
    EngineRequest,
    LatencyModel,
    PrimitiveKind,
    WorkId,
)
from rag_accel.engines.devices.formed_texts import form_of
from rag_accel.engines.devices.joining import Joined
from rag_accel.engines.devices.pieces import WorkPiece
from rag_accel.engines.devices.plan import MemberBatch
from rag_accel.engines.devices.worker import Part, Task
from rag_accel.engines.embedding.checked_vectors import Vector
from rag_accel.engines.embedding.encoder_engine import payload_fault
from rag_accel.engines.embedding.sentence_encoder import Role
from rag_accel.engines.embedding.vector_cache import KnownTexts, VectorCache
from rag_accel.engines.outbox import Outbox
from rag_accel.errors import EngineError

MOST_WORK = 1 << 20
"""Texts that may be queued or computed at once."""


@dataclass(slots=True, eq=False)
class MemberJob:
    """One submitted work. Equal only to itself."""

    request: EngineRequest
    role: Role
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


class MemberJobs:
    """The live works of a group, and the outputs that its next step reports.

    Called under the group's lock, but for ``len``, ``wait`` and ``interrupt``.

    Args:
        dimensions: components of a vector of each role.
        kept: the vectors of texts that work asks to keep, None where none are kept.
    """

    def __init__(self, dimensions: Mapping[Role, int], kept: VectorCache | None) -> None:
        self._dimensions = dimensions
        self._kept = kept
        self._jobs: dict[WorkId, MemberJob] = {}
        self._outbox: Outbox[tuple[MemberJob, EngineOutput]] = Outbox()

    def __len__(self) -> int:
        """Return the number of works whose end has not been reported."""
        return len(self._jobs)

    def __getitem__(self, id: WorkId) -> MemberJob:
        return self._jobs[id]

    def require_valid(self, request: EngineRequest) -> None:
        """Raise EngineError unless a request holds texts to embed, under a fresh id."""
        if request.kind is not PrimitiveKind.EMBEDDING:
            raise EngineError("kind not executed here", found=request.kind, valid="EMBEDDING")
        if (fault := payload_fault(request.payload)) is not None:
            raise fault
        if request.id in self._jobs:
            raise EngineError("unfinished work was submitted again", found=request.id)

    def make(self, request: EngineRequest) -> MemberJob:
        """Return the job of a valid request, with the texts whose vectors are not known."""
        form, role = form_of(request.payload), request.payload.role
        texts = request.payload.texts if form is None else form.texts(request.payload.texts)
        known = None
        if request.payload.keep and self._kept is not None:
            known = self._kept.look_up_texts(request.namespace, role, texts)
            texts = known.missing_of(texts)
        vectors = np.empty((len(texts), self._dimensions[role]), dtype=np.float32)
        return MemberJob(request, role, texts, vectors, known)

    def add(self, job: MemberJob) -> None:
        self._jobs[job.request.id] = job

    def task(self, batch: MemberBatch) -> Task:
        parts: list[Part] = []
        for piece in batch.pieces:
            job = self._jobs[piece.work]
            texts = tuple(job.texts[position] for position in piece.positions)
            parts.append(Part(piece, texts, job.role))
        return Task(batch, tuple(parts))

    def store(self, piece: WorkPiece, rows: Vector) -> None:
        """Store the vectors of a piece, ``[texts, dim], float32``."""
        self._jobs[piece.work].vectors[list(piece.positions)] = rows

    def end(self, id: WorkId) -> None:
        """Report a work whose vectors are all there."""
        job = self._jobs[id]
        self._outbox.put([(job, EngineOutput(id, "final", job.value(self._kept)))])

    def fail(self, id: WorkId, error: BaseException) -> None:
        """Report a work that ended with an error."""
        self._outbox.put([(self._jobs[id], EngineOutput(id, "error", error=error))])

    def num_texts(self, ids: Iterable[WorkId]) -> int:
        """Return the number of texts to compute of those works that live."""
        jobs = (self._jobs.get(id) for id in ids)
        return sum(len(job.texts) for job in jobs if job is not None)

    def wait(self, timeout_s: float) -> list[tuple[MemberJob, EngineOutput]]:
        """Return reports for ``settle``; wait up to so long for a first one, or an interrupt."""
        return self._outbox.take(timeout_s)

    def interrupt(self) -> None:
        """Make the present or the next ``wait`` return at once."""
        self._outbox.interrupt()

    def settle(self, reports: Iterable[tuple[MemberJob, EngineOutput]]) -> list[EngineOutput]:
        """Forget works that have ended, and return their outputs."""
        outputs: list[EngineOutput] = []
        for job, output in reports:
            if self._jobs.get(output.id) is job:  # else it was cancelled after its end
                del self._jobs[output.id]
                outputs.append(output)
        return outputs

    def cancel(self, ids: Iterable[WorkId]) -> None:
        for id in ids:
            self._jobs.pop(id, None)

    def clear(self) -> None:
        """Forget all works and kept vectors."""
        self._jobs.clear()
        if self._kept is not None:
            self._kept.clear()


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
