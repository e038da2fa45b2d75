"""One scorer that orders the documents of many requests, batched across requests.

A request's documents become ``(query, text)`` pairs; the pairs of all requests go to the scorer
together, sorted by length, and each request gets its own documents back, best first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from rag_accel.clock import Clock, MonotonicClock
from rag_accel.engine_api import (
    Capability,
    Document,
    EngineOutput,
    EngineProfile,
    EngineRequest,
    LatencyModel,
    PrimitiveKind,
    RerankBatch,
    ScoredDocument,
    StepBudget,
    WorkId,
)
from rag_accel.engines.bases import OwnEngine
from rag_accel.engines.batching import (
    CPU_LIMITS,
    BatchLimits,
    StepDeadline,
    micro_batches,
    shared_limits,
)
from rag_accel.engines.embedding.microbatches import BatchCall, MicroBatches
from rag_accel.engines.embedding.models import default_threads
from rag_accel.engines.helper_threads import HelperThreads, default_parallel
from rag_accel.engines.pending import PendingWork, Slot
from rag_accel.engines.rerank.max_sim import MaxSimScorer
from rag_accel.engines.torch_threads import thread_count
from rag_accel.errors import ConfigError, EngineError, EngineOutputError

Pair = tuple[str, str]
PairScorer = Callable[[list[Pair]], Sequence[float]]

_CHARACTERS_PER_TOKEN = 4
# Cross-encoders and MiniLM cut what is longer; it only decides what is batched with what.
_USUAL_MAX_TOKENS = 512
# Measured for the default scorer, documents of about 65 tokens, one thread.
_FIRST_GUESS = LatencyModel(base_s=0.018, per_item_s=0.0115)
_SAMPLES = (
    (
        PrimitiveKind.RERANKING,
        RerankBatch("When did it open?", (Document("0", "The bridge opened in 1932."),)),
    ),
)


class _ScoringCall(BatchCall[Pair]):
    def __init__(self, scorer: PairScorer, slots: list[Slot[Pair]]) -> None:
        self.slots = slots
        self._scorer = scorer

    def _begin(self, slots: list[Slot[Pair]], threads: int) -> Callable[[], list[float]]:
        return partial(_call, self._scorer, slots)


class RerankEngine(OwnEngine):
    """An engine for RERANKING work (``RerankBatch``) with any scorer of text pairs.

    Final value: ``tuple[ScoredDocument, ...]``, highest score first, equal scores in the order
    given. ``top_n=None`` or more than there are returns all, 0 returns none. Work ends in
    ``error`` where its payload is malformed or ``top_n`` is negative, where the scorer raises for
    it, or where a score is not finite (EngineOutputError); other work is not touched.

    When a call of the scorer raises or returns a wrong number of scores, each request's part of it
    is tried alone.

    Args:
        scorer: from a list of ``(query, text)`` to one score each, higher is nearer; by default
            ``MaxSimScorer()``. A true attribute ``batches_pairs`` says that it forms micro-batches
            itself and wants all pairs of a step at once.
        reproducible: the default scorer encodes each text alone and another one is called for one
            pair at a time, on one thread, so that neighbours do not change a score's last bits.
        limits: bounds of one call (``batch``, ``padding``) and of a step, in estimated tokens; by
            default the scorer's own ``limits``, else those for a model on the CPU.
        max_batch: documents worth putting into one call or step.
        max_threads: torch threads a step can use, 0 if the scorer computes elsewhere; by default
            what the default scorer can use, and 1 for another.
        parallel: most calls of the scorer at the same time, on one torch thread each, for different
            requests; the scorer must bear that. By default as many as there are usable cores for a
            ``MaxSimScorer`` where torch is set to one thread and ``max_threads`` is not given, and
            1 for another; always 1 where ``reproducible``.
        pure: whether equal pairs always get equal scores, whatever else is in a call; by default
            for the default scorer only. Then what was found can be reranked piece by piece.
        is_local: whether the scorer computes in this process, so that a pair may be scored before
            there is a request; by default for the default scorer only.
        latency: first guess of a step's time.
        clock: measures ``StepBudget.time_s``.

    Raises:
        ImportError: the default scorer needs a package that is missing; names the extra.
        ConfigError: ``parallel`` is no int from 1.
    """

    def __init__(
        self,
        scorer: PairScorer | None = None,
        *,
        reproducible: bool = False,
        limits: BatchLimits | None = None,
        max_batch: int = 64,
        max_threads: int | None = None,
        parallel: int | None = None,
        pure: bool | None = None,
        is_local: bool | None = None,
        latency: LatencyModel = _FIRST_GUESS,
        clock: Clock | None = None,
    ) -> None:
        ours = scorer is None
        self._scorer: PairScorer = MaxSimScorer(reproducible=reproducible) if ours else scorer
        self._whole_steps = bool(getattr(self._scorer, "batches_pairs", False))
        self._reproducible = reproducible
        self._limits = limits or getattr(self._scorer, "limits", CPU_LIMITS)
        self._clock = clock or MonotonicClock()
        self._pending: PendingWork[Pair, float] = PendingWork(_ranked)
        threads = 1 if max_threads is None else max_threads
        if max_threads is None and isinstance(self._scorer, MaxSimScorer):
            threads = default_threads(self._scorer.on_cpu)
            parallel = default_parallel(threads) if parallel is None else parallel
        parallel = 1 if reproducible or parallel is None else _checked(parallel)
        threads = parallel if parallel > 1 else threads
        self._parallel = parallel
        self._threads = 1
        self._side_by_side: MicroBatches[_ScoringCall] | None = None
        if parallel > 1:
            helpers = HelperThreads()
            self._side_by_side = MicroBatches(self._pending, self._calls, threads, helpers)
        is_pure = ours if pure is None else pure
        is_itemwise = is_pure or isinstance(self._scorer, MaxSimScorer)
        profile = EngineProfile(
            kinds=frozenset({PrimitiveKind.RERANKING}),
            max_batch=max_batch * parallel,
            latency=latency,
            max_threads=min(threads, 1) if reproducible else threads,
            stepped=True,
            interruptible=parallel > 1,
            pure=is_pure,
            capabilities=frozenset({Capability.ITEMWISE} if is_itemwise else ()),
            samples=_SAMPLES if (ours if is_local is None else is_local) else (),
        )
        super().__init__(profile)

    def submit(self, work: Sequence[EngineRequest]) -> None:
        for request in work:
            fault = _fault(request.payload)
            if fault is not None:
                self._pending.fail(request.id, fault)
                continue
            batch: RerankBatch = request.payload
            pairs = [(batch.query, document.text) for document in batch.documents]
            self._pending.add(request, pairs, [_estimate(pair) for pair in pairs])

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        """Score about ``limits.step`` tokens, at least one call; return what ended.

        Where calls run side by side, return when one has ended; the others go on, unless other
        engines share the cores.
        """
        threads = min(budget.threads, self._profile.max_threads)
        if self._side_by_side is not None and (threads > 1 or len(self._side_by_side)):
            self._step_side_by_side(self._side_by_side, threads)
            return self._pending.drain()
        deadline = StepDeadline(self._clock, budget.time_s)
        slots = self._pending.take(self._limits.step)
        if slots:
            with thread_count(threads):
                for batch in self._cut(slots):
                    self._score(batch, deadline)
        return self._pending.drain()

    def interrupt(self) -> None:
        if self._side_by_side is not None:
            self._side_by_side.interrupt()

    def cancel(self, ids: Sequence[WorkId]) -> None:
        """Forget work; a call of the scorer is never stopped for one member."""
        self._pending.cancel(ids)

    def close(self) -> None:
        """Forget all work once calls under way have ended; the scorer stays the caller's."""
        if self._side_by_side is not None:
            self._side_by_side.close()
        self._pending.clear()

    def _step_side_by_side(self, calls: MicroBatches[_ScoringCall], threads: int) -> None:
        self._threads = threads
        calls.fill(threads)
        if len(calls) and (first := calls.take(threads)) is not None:
            self._end(first)
        for call in calls.take_rest(threads):
            self._end(call)
        calls.put_back()

    def _end(self, call: _ScoringCall) -> None:
        with thread_count(1):
            self._settle(call.slots, partial(call.take, 1))

    def _calls(self) -> Iterator[_ScoringCall]:
        """Take a share of what waits and cut it into a call for each thread that is free."""
        assert self._side_by_side is not None
        running = len(self._side_by_side)
        count = max(1, self._side_by_side.side_by_side(self._threads) - running)
        for slots in self._parts(count):
            yield _ScoringCall(self._scorer, slots)

    def _parts(self, count: int) -> list[list[Slot[Pair]]]:
        least = self._limits.batch * count
        share = self._limits.step * count // self._parallel
        slots = self._pending.take(max(least, share))
        if self._whole_steps:
            return parts_by_work(slots, count)
        costs = [slot.cost for slot in slots]
        batches = micro_batches(costs, shared_limits(self._limits, costs, count))
        return [[slots[index] for index in batch] for batch in batches]

    def _cut(self, slots: list[Slot[Pair]]) -> list[list[Slot[Pair]]]:
        if self._whole_steps:
            return [slots]
        if self._reproducible:
            return [[slot] for slot in slots]
        batches = micro_batches([slot.cost for slot in slots], self._limits)
        return [[slots[index] for index in batch] for batch in batches]

    def _score(self, slots: list[Slot[Pair]], deadline: StepDeadline) -> None:
        if not deadline.may_start():
            self._pending.put_back(slots)
            return
        self._settle(slots, partial(_call, self._scorer))

    def _settle(
        self, slots: list[Slot[Pair]], call: Callable[[list[Slot[Pair]]], list[float]]
    ) -> None:
        for part, scores in self._pending.attempt(slots, call):
            for slot, score in zip(part, scores, strict=True):
                if not self._pending.is_alive(slot):
                    continue
                if np.isfinite(score):
                    self._pending.settle(slot, score)
                else:
                    self._pending.fail(slot.work, _not_finite(slot, score))


def parts_by_work(slots: Iterable[Slot[Pair]], count: int) -> list[list[Slot[Pair]]]:
    """Return slots in up to ``count`` parts of about equal cost, those of one work together."""
    work_items: dict[WorkId, list[Slot[Pair]]] = {}
    for slot in slots:
        work_items.setdefault(slot.work, []).append(slot)
    costs = {work: sum(slot.cost for slot in own) for work, own in work_items.items()}
    parts = [list[Slot[Pair]]() for _ in range(min(count, len(work_items)))]
    sums = [0] * len(parts)
    for work in sorted(work_items, key=lambda work: -costs[work]):
        least = sums.index(min(sums))
        sums[least] += costs[work]
        parts[least] += work_items[work]
    return parts


def _call(scorer: PairScorer, slots: list[Slot[Pair]]) -> list[float]:
    values: Any = scorer([slot.item for slot in slots])
    try:
        scores = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise EngineOutputError(
            "a scorer returned no sequence of numbers", found=type(values).__name__
        ) from error
    if scores.shape != (len(slots),):
        raise EngineOutputError(
            "wrong number of scores",
            found=f"shape {scores.shape}",
            valid=f"({len(slots)},), one per pair",
        )
    return scores.tolist()


def _ranked(request: EngineRequest, scores: list[float]) -> tuple[ScoredDocument, ...]:
    batch: RerankBatch = request.payload
    # sorted() is stable, also in reverse: equal scores keep the order given.
    order = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
    return tuple(ScoredDocument(batch.documents[i], scores[i]) for i in order[: batch.top_n])


def _estimate(pair: Pair) -> int:
    return min(sum(map(len, pair)) // _CHARACTERS_PER_TOKEN + 2, _USUAL_MAX_TOKENS)


def _checked(parallel: Any) -> int:
    if not isinstance(parallel, int) or isinstance(parallel, bool) or parallel < 1:
        raise ConfigError(
            "bad number of calls at the same time",
            where="parallel",
            found=repr(parallel),
            valid="an int from 1",
        )
    return parallel


def _not_finite(slot: Slot[Pair], score: float) -> EngineOutputError:
    return EngineOutputError(
        "a score is not finite",
        where=f"document {slot.position} of {slot.work}",
        found=str(score),
        valid="a finite number",
    )


def _fault(payload: object) -> EngineError | None:
    if not isinstance(payload, RerankBatch):
        return EngineError(
            "a rerank engine got something else than documents",
            found=type(payload).__name__,
            valid="RerankBatch",
        )
    if not isinstance(payload.query, str):
        return EngineError("a query is no string", found=type(payload.query).__name__)
    top_n = payload.top_n
    if top_n is not None and (isinstance(top_n, bool) or not isinstance(top_n, int) or top_n < 0):
        return EngineError("bad top_n", found=repr(top_n), valid="None, 0 or a positive int")
    for position, document in enumerate(payload.documents):
        if not isinstance(document, Document) or not isinstance(document.text, str):
            return EngineError(
                "a document has no text", where=f"document {position}", found=repr(type(document))
            )
    return None
