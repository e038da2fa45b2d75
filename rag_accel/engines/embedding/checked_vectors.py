"""Vectors that a model or a user's function returned, checked before they become results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rag_accel.errors import EngineOutputError

Vector = NDArray[np.float32]


def checked_rows(values: Any, count: int) -> Sequence[Any]:
    """Return ``values`` if it has one row per text; a wrong number cannot be told apart.

    Raises:
        EngineOutputError: it has no length, or another length than ``count``.
    """
    try:
        found = len(values)
    except TypeError:
        raise EngineOutputError(
            "an embedding function returned no sequence of vectors", found=type(values).__name__
        ) from None
    if found != count:
        raise EngineOutputError(
            "wrong number of vectors", found=f"{found}", valid=f"{count}, one per text"
        )
    return values


def is_checked(values: Any, dimension: int | None) -> bool:
    """Tell whether ``values`` are rows that ``checked_vector`` would return as they are."""
    return (
        isinstance(values, np.ndarray)
        and values.dtype == np.float32
        and values.ndim == 2
        and 0 < values.shape[1] == dimension
        and bool(np.isfinite(values).all())
    )


def checked_vector(value: Any, dimension: int | None) -> Vector:
    """Return ``value`` as ``[dimension], float32``, finite.

    Raises:
        EngineOutputError: NaN, infinity, another shape or something that is no number.
    """
    vector = _as_vector(value)
    if vector is None:
        raise EngineOutputError(
            "an embedding is no vector", found=type(value).__name__, valid="a sequence of numbers"
        )
    if len(vector) == 0 or (dimension is not None and len(vector) != dimension):
        raise EngineOutputError(
            "wrong dimension of an embedding",
            found=str(len(vector)),
            valid=str(dimension) if dimension else "1 or more",
        )
    if not np.isfinite(vector).all():
        raise EngineOutputError(
            "an embedding is not finite", found="NaN or infinity", valid="finite numbers"
        )
    return vector


def usual_dimension(values: Sequence[Any]) -> int | None:
    """Return the commonest number of components among rows that are vectors, None if none is."""
    vectors = (_as_vector(value) for value in values)
    counts = Counter(len(vector) for vector in vectors if vector is not None and len(vector))
    return counts.most_common(1)[0][0] if counts else None


def _as_vector(value: Any) -> Vector | None:
    try:
        # A number beyond float32 becomes infinity, which is reported as such.
        with np.errstate(over="ignore"):
            vector = np.asarray(value, dtype=np.float32)
    except (TypeError, ValueError):
        return None
    return vector if vector.ndim == 1 else None
