"""An embedding model, stepped over the texts of all requests at once.

All texts waiting go through the model sorted by length, in micro-batches bounded in padded tokens,
so that a long text never pads a short one and a text costs the same whatever it is batched with.
Work larger than a step is spread over several, so that a bulk load never holds up a query.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from rag_accel.clock import Clock, MonotonicClock
from rag_accel.engine_api import (
    Capability,
    EngineOutput,
    EngineProfile,
    EngineRequest,
    LatencyModel,
    PrimitiveKind,
    StepBudget,
    TextBatch,
    WorkId,
)
from rag_accel.engines.bases import OwnEngine
from rag_accel.engines.batching import (
    BatchLimits,
    StepDeadline,
    micro_batches,
    of_few_sizes,
    shared_limits,
)
from rag_accel.engines.embedding.checked_vectors import (
    Vector,
    checked_vector,
    is_checked,
    usual_dimension,
)
from rag_accel.engines.embedding.microbatches import Encoder, MicroBatches, Piece
from rag_accel.engines.embedding.prepared_texts import CompiledTexts, PreparedTexts
from rag_accel.engines.embedding.sentence_encoder import Role
from rag_accel.engines.embedding.vector_cache import KnownTexts, VectorCache
from rag_accel.engines.helper_threads import HelperThreads
from rag_accel.engines.pending import PendingWork, Slot
from rag_accel.errors import EngineError, EngineOutputError

KEPT_BYTES = 64 * 2**20
"""The default of ``kept_bytes``: some thirty thousand texts with vectors of 384 components."""


def embedding_profile(
    max_batch: int,
    max_threads: int,
    latency: LatencyModel,
    *,
    pure: bool,
    capabilities: frozenset[Capability] = frozenset(),
    interruptible: bool = False,
    samples: tuple[tuple[PrimitiveKind, TextBatch], ...] = (),
) -> EngineProfile:
    """Describe an engine that embeds."""
    return EngineProfile(
        kinds=frozenset({PrimitiveKind.EMBEDDING}),
        max_batch=max_batch,
        latency=latency,
        max_threads=max_threads,
        stepped=True,
        interruptible=interruptible,
        pure=pure,
        capabilities=capabilities,
        samples=samples,
    )


class EmbeddingEngine(OwnEngine):
    """An engine for EMBEDDING work (``TextBatch``) with any encoder.

    Final value: ``[len(texts), dim], float32``, rows in the order of the texts. Work ends in
    ``error`` where one of its texts is no string, where the encoder raises for it, or where its
    result is not finite or of another dimension (EngineOutputError); other work is not touched.

    Args:
        encoder: the model.
        profile: what the engine tells the scheduler.
        limits: bounds of micro-batches and steps.
        alone: compute each text by itself and unpadded, on one thread, so that its vector is the
            same bit by bit whatever else is computed.
        clock: measures ``StepBudget.time_s``.
        kept: the vectors of texts that work asks to keep; by default none are kept.
        parallel: most micro-batches that compute at the same time, on one thread each; with more
            than 1, the threads granted to a step are spread over so many.
    """

    def __init__(
        self,
        encoder: Encoder,
        profile: EngineProfile,
        limits: BatchLimits,
        *,
        alone: bool = False,
        clock: Clock | None = None,
        kept: VectorCache | None = None,
        parallel: int = 1,
    ) -> None:
        self._encoder = encoder
        super().__init__(profile)
        self._limits = limits
        self._alone = alone
        self._clock = clock or MonotonicClock()
        self._pending: PendingWork[str, Vector] = PendingWork(self._join)
        self._roles: dict[WorkId, Role] = {}
        self._kept = kept
        self._known: dict[WorkId, KnownTexts] = {}
        self._learned: dict[Role, int] = {}
        self._helpers = HelperThreads() if parallel > 1 else None
        self._microbatches = MicroBatches(
            self._pending, self._micro_batches, profile.max_threads, self._helpers
        )
        self._threads = 1

    @property
    def counts(self) -> Mapping[str, int]:
        """Return the hits, misses and bytes of the vector cache."""
        return self._kept.counts if self._kept is not None else {}

    @property
    def kept(self) -> VectorCache | None:
        """Return the vectors of texts that work asks to keep, None where none are kept."""
        return self._kept

    @property
    def limits(self) -> BatchLimits:
        """Return the bounds of micro-batches and steps."""
        return self._limits

    def estimate(self, text: str) -> int:
        return self._encoder.estimate(text)

    @property
    def num_unfinished(self) -> int:
        """Return the number of works that have not ended."""
        return len(self._pending)

    def submit(self, work: Sequence[EngineRequest]) -> None:
        for request in work:
            fault = payload_fault(request.payload)
            if fault is not None:
                self._pending.fail(request.id, fault)
                continue
            self._roles[request.id] = self._encoder.same_batch(request.payload.role)
            texts = self._unknown(request)
            self._pending.add(request, texts, [self._encoder.estimate(text) for text in texts])

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        """Compute about ``limits.step`` tokens, at least one micro-batch; return what ended.

        A compiled model returns after each micro-batch. Others are under way and in line then, so
        that it does not stand still while callers are given their vectors and ask for more. So do
        micro-batches that compute side by side, unless other engines share the cores.
        """
        deadline = StepDeadline(self._clock, budget.time_s)
        self._threads = threads = min(budget.threads, self._profile.max_threads)
        self._microbatches.fill(threads)
        while len(self._microbatches) and deadline.may_start():
            piece = self._microbatches.take(threads)
            if piece is None:
                break
            overlaps = piece.overlaps
            self._finish(piece, threads)
            if overlaps:
                break
            self._microbatches.start_next(threads)
        for piece in self._microbatches.take_rest(threads):
            self._finish(piece, threads)
        self._microbatches.put_back()
        outputs = self._pending.drain()
        for output in outputs:
            self._forget(output.id)
        return outputs

    def interrupt(self) -> None:
        self._microbatches.interrupt()

    def cancel(self, ids: Sequence[WorkId]) -> None:
        """Forget work; a micro-batch is never stopped for one member."""
        self._pending.cancel(ids)
        for work in ids:
            self._forget(work)

    def close(self) -> None:
        """Forget all work; the model stays the caller's."""
        self._microbatches.close()
        self._pending.clear()
        self._roles.clear()
        self._known.clear()
        if self._kept is not None:
            self._kept.clear()

    def _forget(self, work: WorkId) -> None:
        self._roles.pop(work, None)
        self._known.pop(work, None)

    def _unknown(self, request: EngineRequest) -> Sequence[str]:
        """Return the texts of work that have to be computed; of the others remember the vectors."""
        batch: TextBatch = request.payload
        if not batch.keep or self._kept is None:
            return batch.texts
        role = self._roles[request.id]
        known = self._kept.look_up_texts(request.namespace, role, batch.texts)
        self._known[request.id] = known
        return known.missing_of(batch.texts)

    def _micro_batches(self) -> Iterator[Piece]:
        """Take about ``limits.step`` tokens of what waits, in micro-batches of similar length."""
        groups: dict[Role, list[Slot[str]]] = {}
        for slot in self._pending.take(self._limits.step):
            groups.setdefault(self._roles[slot.work], []).append(slot)
        for role, group in groups.items():
            for part, prepared in self._pending.attempt(group, partial(self._prepare, role)):
                rows = {slot: row for row, slot in enumerate(part)}
                for batch in self._batches(prepared):
                    yield Piece(role, prepared, rows, [part[row] for row in batch])

    def _finish(self, piece: Piece, threads: int) -> None:
        threads = threads if self._helpers is None else 1
        for done, vectors in self._pending.attempt(piece.slots, partial(piece.take, threads)):
            self._settle(done, vectors, piece.role)

    def _prepare(self, role: Role, slots: list[Slot[str]]) -> PreparedTexts:
        return self._encoder.prepare([slot.item for slot in slots], role)

    def _batches(self, prepared: PreparedTexts) -> list[list[int]]:
        lengths = prepared.lengths
        if self._alone:
            return [[row] for row in range(len(lengths))]
        free = self._microbatches.side_by_side(self._threads) - len(self._microbatches)
        batches = micro_batches(lengths, shared_limits(self._limits, lengths, free))
        return of_few_sizes(batches) if isinstance(prepared, CompiledTexts) else batches

    def _settle(self, slots: list[Slot[str]], vectors: Sequence[Any], role: Role) -> None:
        dimension = self._dimension(role, vectors)
        if is_checked(vectors, dimension):
            for slot, vector in zip(slots, vectors, strict=True):
                self._pending.settle(slot, vector)
            return
        for slot, vector in zip(slots, vectors, strict=True):
            if not self._pending.is_alive(slot):
                continue
            try:
                self._pending.settle(slot, checked_vector(vector, dimension))
            except EngineOutputError as error:
                error.where = f"text {slot.position} of {slot.work}"
                self._pending.fail(slot.work, error)

    def _dimension(self, role: Role, vectors: Sequence[Any]) -> int | None:
        known = self._encoder.dimension(role) or self._learned.get(role)
        if known is None:
            known = usual_dimension(vectors)
            if known is not None:
                self._learned[role] = known
        return known

    def _join(self, request: EngineRequest, vectors: list[Vector]) -> Any:
        known = self._known.get(request.id)
        if known is not None and self._kept is not None:
            self._kept.keep(known, vectors)
            vectors = known.joined(vectors)
        if vectors:
            return np.array(vectors)  # copies: each is a row of what others were computed with
        role = self._roles[request.id]
        dimension = self._encoder.dimension(role) or self._learned.get(role) or 0
        return np.empty((0, dimension), dtype=np.float32)


def payload_fault(payload: object) -> EngineError | None:
    """Return why a payload is not one of texts, None if it is."""
    if not isinstance(payload, TextBatch):
        return EngineError(
            "an embedding engine got something else than texts",
            found=type(payload).__name__,
            valid="TextBatch",
        )
    for position, text in enumerate(payload.texts):
        if not isinstance(text, str):
            return EngineError(
                "a text is no string", where=f"text {position}", found=type(text).__name__
            )
    return None
