"""Know what every request of a trace must end with, whoever serves it and whatever else runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bench.corpus import Floats
from bench.research.mixed.index_files import LargeIndex
from bench.research.mixed.programs import TOP_K, Answer
from bench.research.mixed.trace import Request
from rag_accel.engines.retrieval.vectors.vectors import thread_count
from rag_accel.system.processor import usable_cores

#: Scores of unit vectors as close as this are one another's rounding in float32.
TIE = 1e-6
#: FAISS compares larger batches with its centroids by another kernel, which rounds otherwise.
_BATCH = 16


@dataclass(frozen=True, slots=True)
class Agreement:
    """Counts of requests: expected ids, ids that differ by more than a tie, and texts."""

    identical_ids: int
    different_ids: int
    identical_texts: int


class Expected:
    """The ids that stock FAISS in float32 finds for each last search, and the last answers.

    Args:
        index: what is searched.
        vectors: of all queries.
        requests: of the trace.
    """

    def __init__(
        self, index: LargeIndex, vectors: Mapping[str, Floats], requests: Sequence[Request]
    ) -> None:
        self._queries = {one.number: vectors[one.last_query] for one in requests}
        self._stored = np.load(index.folder / "vectors.npy", mmap_mode="r")
        faiss_index = index.stock_index(parallel_mode=0)
        self._answers: dict[int, Answer] = {}
        with thread_count(usable_cores()):
            for start in range(0, len(requests), _BATCH):
                part = requests[start : start + _BATCH]
                queries = np.stack([self._queries[one.number] for one in part])
                labels = faiss_index.search(queries, TOP_K)[1].tolist()
                for one, found in zip(part, labels, strict=True):
                    ids = tuple(str(label) for label in found if label >= 0)
                    self._answers[one.number] = Answer(one.answer, ids)

    def compare(self, answers: Mapping[int, Answer]) -> Agreement:
        """Compare answers, by the numbers of their requests."""
        wanted = self._answers
        other = [number for number, one in answers.items() if one.ids != wanted[number].ids]
        return Agreement(
            len(answers) - len(other),
            sum(not self._is_tie(number, answers[number].ids) for number in other),
            sum(one.text == wanted[number].text for number, one in answers.items()),
        )

    def _is_tie(self, number: int, ids: Sequence[str]) -> bool:
        """Tell whether other ids have the same scores, so that only rounding decides."""
        wanted = self._answers[number].ids
        if len(ids) != len(wanted) or len(set(ids)) != len(ids):
            return False
        scores, best = (
            self._stored[[*map(int, one)]] @ self._queries[number] for one in (ids, wanted)
        )
        return bool(np.allclose(scores, best, rtol=0.0, atol=TIE))
