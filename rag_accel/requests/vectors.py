"""Checks of embedding vectors, whatever engine they come from: NaN, a wrong shape."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rag_accel.engine_api import TextBatch
from rag_accel.errors import EngineOutputError


def checked_vectors(value: Any, payload: TextBatch, where: str) -> NDArray[np.float32]:
    """Return what a borrowed embedder returned as vectors: ``[len(texts), dim], float32``.

    Raises:
        EngineOutputError: if it cannot be that.
    """
    vectors = as_vectors(value)
    if np.issubdtype(vectors.dtype, np.number):
        vectors = vectors.astype(np.float32, copy=False)
    problem = vectors_problem(payload, vectors)
    if problem is not None:
        raise vectors_refused(problem, where)
    return vectors


def as_vectors(value: Any) -> NDArray[Any]:
    """Return a value as an array; one of objects if its rows differ in length."""
    try:
        return np.asarray(value)
    except ValueError:  # rows of different lengths
        return np.asarray(value, dtype=object)


def vectors_refused(problem: str, where: str) -> EngineOutputError:
    """Return the error for vectors with a problem."""
    return EngineOutputError(
        "an embedding engine returned vectors that cannot be right",
        where=where,
        found=problem,
        valid="one finite float vector per text, all of one dimension",
        hint="check the model files and the texts sent to it",
    )


def vectors_problem(payload: TextBatch, vectors: NDArray[Any]) -> str | None:
    """Return a problem of vectors for these texts, such as NaN or a wrong shape; None if right."""
    if vectors.ndim != 2 or vectors.shape[0] != len(payload.texts):
        return f"shape {vectors.shape} for {len(payload.texts)} texts"
    if not np.issubdtype(vectors.dtype, np.floating):
        return f"dtype {vectors.dtype}"
    bad = ~np.isfinite(vectors).all(axis=1)
    return f"NaN or infinity in text {int(bad.argmax())}" if bad.any() else None
