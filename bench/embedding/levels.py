"""Put embeddings, plain and accelerated, under the load of concurrent callers in both shapes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bench.arms import best_torch_threads
from bench.loads import batch_rows, counted, system_rows
from bench.measure import rotate
from bench.results import Row
from rag_accel.accelerator import Accelerator
from rag_accel_demo.load import SHAPES, Load, Shape, run_load, torch_threads

PLAIN, OURS = "plain", "accelerated"
Arms = dict[str, Callable[[int], Load]]
#: What each arm gave, turn by turn.
Found = dict[str, list[Load]]

_logger = logging.getLogger("bench.embedding_concurrency")


class EmbedQuery:
    """An embeddings object that can be loaded as a chain: text in, vector out."""

    def __init__(self, embeddings: Any) -> None:
        self._embeddings = embeddings

    def invoke(self, text: str) -> list[float]:
        """Embed one text."""
        return self._embeddings.embed_query(text)

    async def ainvoke(self, text: str) -> list[float]:
        """Embed one text."""
        return await self._embeddings.aembed_query(text)

    def embed_all(self, texts: Sequence[str]) -> list[list[float]]:
        """Embed many texts by one call."""
        return self._embeddings.embed_documents(list(texts))


@dataclass(frozen=True, slots=True)
class Level:
    """One number of callers; arms take turns over the same texts.

    Args:
        plain: the embeddings as they are.
        fast: the same, accelerated.
        accelerator: whose batches are told.
        callers: how many call at the same time.
        texts: what they embed, one text a call.
        tuning_texts: how many of them look for plain's best number of torch threads.
        repeats: turns.
    """

    plain: EmbedQuery
    fast: EmbedQuery
    accelerator: Accelerator
    callers: int
    texts: Sequence[str]
    tuning_texts: int
    repeats: int

    def run(self, others: Callable[[Shape], Arms]) -> tuple[dict[Shape, Found], list[Row]]:
        """Return what every arm gave in each shape, and the rows that say it.

        Args:
            others: arms besides, of a shape.
        """
        found: dict[Shape, Found] = {}
        rows: list[Row] = []
        for shape in SHAPES:
            found[shape] = rotate({**self._arms(shape), **others(shape)}, self.repeats)
            workload = workload_of(self.callers, shape)
            for system, loads in found[shape].items():
                rows += system_rows(system, workload, loads, "texts_per_s")
            rows += batch_rows(self.accelerator, workload)
            rows += [
                _difference(system, workload, found[shape][PLAIN], loads)
                for system, loads in found[shape].items()
                if system != PLAIN
            ]
        return found, rows

    def _arms(self, shape: Shape) -> Arms:
        asked = self.texts[: self.tuning_texts]
        best = best_torch_threads(
            lambda: run_load(self.plain, asked, self.callers, shape).throughput_rps
        )
        _logger.info("%s: plain runs best on %d threads", workload_of(self.callers, shape), best)
        return {PLAIN: partial(self._plain, shape, best), OURS: partial(self._fast, shape)}

    def _plain(self, shape: Shape, threads: int, turn: int) -> Load:
        with torch_threads(threads):
            return run_load(self.plain, self.texts, self.callers, shape)

    def _fast(self, shape: Shape, turn: int) -> Load:
        return run_load(self.fast, self.texts, self.callers, shape)


def workload_of(callers: int, shape: Shape) -> str:
    """Name so many callers of a shape."""
    return counted(callers, "thread" if shape == "threads" else "task")


def _difference(system: str, workload: str, plain: Sequence[Load], loads: Sequence[Load]) -> Row:
    """Return the largest difference of any component of any vector to plain's of the same turn."""
    differences = [
        float(np.abs(np.asarray(one.answers) - np.asarray(other.answers)).max())
        for one, other in zip(plain, loads, strict=True)
    ]
    n = sum(len(load.answers) for load in loads)
    return Row(system, workload, "max_abs_difference", max(differences), None, n)
