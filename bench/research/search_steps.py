"""Search in steps, through the engine, against the whole search by the same 8-bit lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

from bench.measure import Pairs, alternate, timed
from bench.search_arms import searches_of
from bench.vectors import Vectors
from rag_accel.engine_api import EngineRequest, PrimitiveKind, SearchQuery, StepBudget, WorkId
from rag_accel.engines.retrieval import DocumentIndex, RetrievalEngine
from rag_accel.engines.retrieval.coded.searches import CodedSearches
from rag_accel.engines.retrieval.stepped.scan import ScanCost
from rag_accel.errors import EngineError

STEPS = 8


class _EqualPieces(ScanCost):
    """Pieces of equal size: a loaded machine must not cut in another way."""

    def __init__(self, vectors: float) -> None:
        super().__init__(base_s=0.0, per_vector_s=1.0)
        self._vectors = vectors

    def vectors_in(self, seconds: float) -> float:
        """Return the size of a piece."""
        return self._vectors

    def observe(self, vectors: int, scan_s: float, base_s: float) -> None:
        """Learn nothing."""


def whole_and_in_steps(
    index: DocumentIndex,
    coded: CodedSearches,
    asked: Sequence[Vectors],
    k: int,
    nprobe: int,
    threads: int,
) -> tuple[Pairs[float], list[float], list[bool]]:
    """Return the seconds of whole searches and of stepped ones, the steps, and whose ids agree."""
    count = len(asked[0])
    pieces = _EqualPieces(count * index.num_compared(None, nprobe) / STEPS)
    budget = StepBudget(time_s=0.0, threads=threads)  # one piece for each step
    steps: list[float] = []
    whole: dict[int, Any] = {}
    stepped: dict[int, Any] = {}

    def in_steps(turn: int) -> None:
        stepped[turn], taken = _in_steps(engine, asked[turn], k, nprobe, budget)
        steps.append(taken)

    def in_one(turn: int) -> None:
        whole[turn] = coded.search(searches_of(asked[turn], k, nprobe))

    with mock.patch.object(RetrievalEngine, "_piece_cost", return_value=pieces):
        engine = RetrievalEngine(index, sliced_from_s=0.0, max_threads=threads)
        if not engine.make_codes():
            raise EngineError("no codes", where="8-bit lists", hint="see the log")
        pairs = alternate(timed(in_one), timed(in_steps), len(asked))
        engine.close()
    same = [
        list(one) == list(other)
        for turn in whole
        for one, other in zip(whole[turn], stepped[turn], strict=True)
    ]
    return pairs, steps, same


def _in_steps(
    engine: RetrievalEngine, queries: Vectors, k: int, nprobe: int, budget: StepBudget
) -> tuple[list[Any], float]:
    engine.submit([_request(number, one, k, nprobe) for number, one in enumerate(queries)])
    found: dict[str, Any] = {}
    steps = 0
    while len(found) < len(queries):
        found |= {str(output.id): output.value for output in engine.step(budget)}
        steps += 1
    return [found[str(number)] for number in range(len(queries))], float(steps)


def _request(number: int, vector: Any, k: int, nprobe: int) -> EngineRequest:
    query = SearchQuery(vector, k, None, nprobe)
    return EngineRequest(WorkId(str(number)), "bench", PrimitiveKind.SEARCHING, query)
