"""Generations of one request that begin with what its search has found so far (HedraRAG 4.3)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from itertools import takewhile
from threading import Lock
from typing import Any, NamedTuple, Protocol

from rag_accel.engine_api import EngineOutput, EngineRequest, Provisional, ScoredDocument
from rag_accel.graph.primitives import Primitive
from rag_accel.leaves.early_answers import EarlyAnswer
from rag_accel.leaves.early_beginnings import Count
from rag_accel.requests.early_prefills import is_plain
from rag_accel.requests.speculation_record import Seen, SpeculationRecord
from rag_accel.requests.values import Foreseen, Readable, Values
from rag_accel.scheduler.driver import BegunWork, Driver
from rag_accel.scheduler.messages import (
    EngineName,
    LeafArrived,
    NodeCancelled,
    NodeKey,
    NodeSpec,
    RequestId,
)

_log = logging.getLogger("rag_accel.requests")


class SpeculatedPair(NamedTuple):
    """A search and the generation that only waits for it, by name, and what both have shown."""

    search: str
    generation: str
    engine: EngineName
    record: SpeculationRecord


class Build(Protocol):
    """The building of a primitive's work from values that may not be final."""

    def __call__(self, node: NodeKey, primitive: Primitive, values: Readable) -> EngineRequest:
        """Return the work, named by ``node``."""
        ...


class SpeculatedAnswer(EarlyAnswer):
    """A generation that was begun with documents that may not be final.

    Args:
        work: the generation.
        key, engine: of its leaf.
        ids: of the documents, best first.
        now: on the driver's clock.
    """

    __slots__ = ("began_at", "ids", "told", "work")

    def __init__(
        self,
        work: EngineRequest,
        key: NodeKey,
        engine: EngineName,
        ids: tuple[str, ...],
        now: float,
    ) -> None:
        super().__init__(work.payload, lambda node: work, key, engine)
        self.work, self.ids, self.began_at = work, ids, now
        self.told: list[EngineOutput] = []

    def partial(self, node: NodeKey, output: EngineOutput) -> None:
        """Keep an increment, which nobody is to see before it is known to be right."""
        self.told.append(output)

    @property
    def is_well(self) -> bool:
        """Tell whether it has neither failed nor been refused."""
        return self.outcome in (None, "done")

    def may_become(self, work: EngineRequest) -> bool:
        """Tell whether it is exactly this work, and can be taken over."""
        is_equal = self.payload == work.payload and self.work.stream == work.stream
        return is_equal and self.has_begun and self.is_well


class _Speculation:
    """One pair in one request. Whoever uses it holds the lock of ``Speculations``."""

    def __init__(self, pair: SpeculatedPair) -> None:
        self.pair = pair
        self.seen: list[Seen] = []
        self.answer: SpeculatedAnswer | None = None
        #: when the search, and then the generation, began
        self.began_at: float | None = None


class Speculations:
    """The searches of one request whose provisional results are looked at. Thread-safe.

    No code of the user's runs here, and no error of its own reaches the request.

    Args:
        request: lives in the scheduler before the first search begins.
        values: what the request has by now.
        count: told of ``speculation_hits`` and ``speculation_misses``.
    """

    def __init__(self, driver: Driver, request: RequestId, values: Values, count: Count) -> None:
        self._driver, self._request, self._values = driver, request, values
        self._count = count
        self._lock = Lock()
        self._searches: dict[str, _Speculation] = {}
        self._generations: dict[str, _Speculation] = {}
        self._num_begun = 0

    def expect(self, pairs: Iterable[SpeculatedPair]) -> None:
        """Take in the pairs of a region."""
        for pair in pairs:
            one = self._searches[pair.search] = _Speculation(pair)
            self._generations[pair.generation] = one

    def asks(self, search: str) -> bool:
        """Tell whether a primitive that is about to begin is to tell its provisional results."""
        one = self._searches.get(search)
        if one is None:
            return False
        with self._lock:
            one.seen, one.began_at = [], self._driver.now()
        return one.pair.record.asks()

    def revise(
        self,
        search: str,
        found: Provisional,
        primitives: Mapping[str, Primitive],
        build: Build,
    ) -> None:
        """Look at a provisional result, on its engine's thread.

        Begin the generation with it if it is worth that, and drop one that it proves wrong.

        Args:
            search: it is the result of.
            found: the result.
            primitives: of the request, by node.
            build: builds the work of a generation.
        """
        one = self._searches.get(search)
        if one is None:
            return
        generation = primitives[one.pair.generation]
        try:
            seen = Seen(found.done, found.unchanged, found.left_s, ids_of(found.value))
            with self._lock:
                one.seen.append(seen)
                answer = one.answer
                if answer is not None and answer.ids == seen.ids and answer.is_well:
                    return
                one.answer = None
            self._drop(one, answer, generation.stage, seen.ids)
            stakes = one.pair.record.stakes(seen)
            values = self._foreseen(found.value, primitives[search], generation)
            if stakes is None or values is None:
                return
            self._num_begun += 1
            spec = NodeSpec(
                f"{generation.name}.speculated{self._num_begun}",
                one.pair.engine,
                generation.kind,
                depth=generation.depth,
                stakes=stakes,
            )
            work = build(NodeKey(self._request, spec.name), generation, values)
            self._begin(one, work, seen.ids, spec)
        except Exception:  # nobody waits for it, so nobody is to fail with it
            _log.exception("the answer of %s could not be begun early", generation.stage)

    def _foreseen(self, found: Any, search: Primitive, generation: Primitive) -> Foreseen | None:
        """Return the values of a generation if all but the search's are there, and none is code."""
        others = [name for name in generation.inputs if name != search.output]
        if search.output is None or not all(self._values.has(name) for name in others):
            return None
        if not all(is_plain(self._values.read(name)) for name in others):
            return None
        return Foreseen(self._values, {search.output: found})

    def _begin(
        self, one: _Speculation, work: EngineRequest, ids: tuple[str, ...], spec: NodeSpec
    ) -> None:
        now = self._driver.now()
        answer = SpeculatedAnswer(work, NodeKey(self._request, spec.name), spec.engine, ids, now)
        with self._lock:
            one.answer = answer
        self._driver.submit(LeafArrived(self._request, spec, now), answer)

    def ended(self, primitive: str, value: Any, stage: str) -> None:
        """Learn what a search has found, or that a generation is over."""
        if (one := self._searches.get(primitive)) is not None:
            final, wrong = ids_of(value), None
            with self._lock:
                if one.answer is not None and one.answer.ids != final:
                    wrong, one.answer = one.answer, None
                if one.began_at is not None:
                    took_s = self._driver.now() - one.began_at
                    one.pair.record.search_ended(one.seen, final, took_s)
            self._drop(one, wrong, stage, final)
        elif (one := self._generations.get(primitive)) is not None and one.began_at is not None:
            one.pair.record.answer_ended(self._driver.now() - one.began_at)

    def take(self, generation: str, work: EngineRequest, stage: str) -> EngineRequest | BegunWork:
        """Return what was begun of a generation if it is exactly this work; else the work."""
        one = self._generations.get(generation)
        if one is None:
            return work
        with self._lock:
            answer, one.answer = one.answer, None
            one.began_at = self._driver.now()
            is_taken = answer is not None and answer.may_become(work)
            if answer is not None and is_taken:
                one.began_at = answer.began_at
        if answer is None:
            return work
        if not is_taken:
            self._drop(one, answer, stage, answer.ids, was_right=True)
            return work
        one.pair.record.taken_over()
        self._count("speculation_hits", stage)
        return BegunWork(work, answer.work.id, tuple(answer.told), answer.result)

    def close(self, stage: str | None = None) -> None:
        """Drop all that was begun, or what was begun for a search of a stage."""
        for name, one in list(self._searches.items()):
            if stage is None or name.startswith(f"{stage}."):
                with self._lock:
                    answer, one.answer = one.answer, None
                self._drop(one, answer, stage or "")

    def _drop(
        self,
        one: _Speculation,
        answer: SpeculatedAnswer | None,
        stage: str,
        ids: tuple[str, ...] = (),
        was_right: bool = False,
    ) -> None:
        """Cancel what was begun; ``ids`` are of the documents that are known now.

        Not while the lock is held: posting may handle other events here, also this request's end.
        """
        if answer is None:
            return
        self._driver.post(NodeCancelled(answer.key))
        if answer.has_begun:
            wasted_s = self._driver.now() - answer.began_at
            self._count("speculation_misses", stage)
            # Engines keep what is computed of a prompt: its beginning is not lost.
            pairs = zip(answer.ids, ids, strict=False)
            kept = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            if one.pair.record.dropped(wasted_s, 1.0 - kept / max(1, len(answer.ids)), was_right):
                _log.warning("answers of %s are begun early no more: none was asked for", stage)
                self._count("speculation_off", stage)


def ids_of(value: Any) -> tuple[str, ...]:
    """Return the ids of found documents, best first; none of anything else."""
    if not isinstance(value, tuple | list):
        return ()
    return tuple(hit.document.id for hit in value if isinstance(hit, ScoredDocument))
