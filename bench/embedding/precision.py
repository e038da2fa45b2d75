"""Say what fewer bits give and cost: texts per second beside the nearness of the vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.arms import bench_accelerator
from bench.embedding.levels import EmbedQuery, workload_of
from bench.results import Row, median_row
from langchain_rag_accel import accelerate
from rag_accel.config import EmbeddingRuntime
from rag_accel.engines.embedding.compiled_model import wait_until_compiled
from rag_accel_demo.load import run_load

PRECISIONS: tuple[EmbeddingRuntime, ...] = ("bf16", "int8")
_NEAREST = 5
_PATIENCE_S = 60.0


def precision_rows(
    plain: Any, texts: Sequence[str], wanted: Sequence[Sequence[float]], callers: int, repeats: int
) -> list[Row]:
    """Return speed and nearness of each precision that is not exact.

    Args:
        plain: the embeddings as they are.
        texts: what is embedded, one text a call.
        wanted: their vectors, exact.
        callers: threads that call at the same time.
        repeats: runs.
    """
    rows: list[Row] = []
    for precision in PRECISIONS:
        with bench_accelerator(embedding_runtime=precision) as accelerator:
            fast = EmbedQuery(accelerate(plain, accelerator=accelerator))
            run_load(fast, texts, callers, "threads")
            wait_until_compiled(_PATIENCE_S)
            loads = [run_load(fast, texts, callers, "threads") for _ in range(repeats)]
        rows += _rows(
            f"accelerated, {precision}",
            workload_of(callers, "threads"),
            [load.throughput_rps for load in loads],
            np.asarray(loads[-1].answers),
            np.asarray(wanted),
        )
    return rows


def _rows(system: str, workload: str, rates: list[float], found: Any, wanted: Any) -> list[Row]:
    cosines = np.sum(found * wanted, axis=1) / (
        np.linalg.norm(found, axis=1) * np.linalg.norm(wanted, axis=1)
    )
    same = np.equal(_nearest(found), _nearest(wanted)).all(axis=1)
    n = len(found)
    return [
        median_row(system, workload, "texts_per_s", rates),
        Row(system, workload, "smallest_cosine", float(cosines.min()), None, n),
        Row(system, workload, f"equal_top_{_NEAREST}_share", float(same.mean()), None, n),
    ]


def _nearest(vectors: Any) -> Any:
    """Return each text's nearest other texts, in order: ``[texts, _NEAREST]``."""
    scores = vectors @ vectors.T
    np.fill_diagonal(scores, -np.inf)
    return np.argsort(-scores, axis=1, kind="stable")[:, :_NEAREST]
