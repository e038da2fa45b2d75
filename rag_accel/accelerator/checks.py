"""Refuse outputs no caller could use, whatever engine they come from: NaN, a wrong shape."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rag_accel.engine_api import EngineOutput, EngineRequest, PrimitiveKind, TextBatch
from rag_accel.errors import EngineOutputError


def check_output(request: EngineRequest, output: EngineOutput) -> EngineOutput:
    """Return the output, or an ``error`` in its place if it cannot be right."""
    if output.kind != "final" or request.kind is not PrimitiveKind.EMBEDDING:
        return output
    problem = _problem(request.payload, _as_vectors(output.value))
    if problem is None:
        return output
    return replace(output, kind="error", value=None, error=_refusal(problem, request.id))


def checked_vectors(value: Any, payload: TextBatch, where: str) -> NDArray[np.float32]:
    """Return what a borrowed embedder returned as vectors: ``[len(texts), dim], float32``.

    Raises:
        EngineOutputError: if it cannot be that.
    """
    vectors = _as_vectors(value)
    if np.issubdtype(vectors.dtype, np.number):
        vectors = vectors.astype(np.float32, copy=False)
    problem = _problem(payload, vectors)
    if problem is not None:
        raise _refusal(problem, where)
    return vectors


def _as_vectors(value: Any) -> NDArray[Any]:
    try:
        return np.asarray(value)
    except ValueError:  # rows of different lengths
        return np.asarray(value, dtype=object)


def _refusal(problem: str, where: str) -> EngineOutputError:
    return EngineOutputError(
        "an embedding engine returned vectors that cannot be right",
        where=where,
        found=problem,
        valid="one finite float vector per text, all of one dimension",
        hint="check the model files and the texts sent to it",
    )


def _problem(payload: TextBatch, vectors: NDArray[Any]) -> str | None:
    if vectors.ndim != 2 or vectors.shape[0] != len(payload.texts):
        return f"shape {vectors.shape} for {len(payload.texts)} texts"
    if not np.issubdtype(vectors.dtype, np.floating):
        return f"dtype {vectors.dtype}"
    bad = ~np.isfinite(vectors).all(axis=1)
    return f"NaN or infinity in text {int(bad.argmax())}" if bad.any() else None
