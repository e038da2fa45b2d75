"""Comparison of a member's vectors with the first member's, on texts that both embed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rag_accel.engines.devices.members import Member
from rag_accel.engines.embedding.checked_vectors import (
    Vector,
    checked_rows,
    checked_vector,
    is_checked,
)
from rag_accel.engines.embedding.sentence_encoder import Role
from rag_accel.errors import EngineOutputError

EXACT = 1e-6
"""The largest difference of a component between members that join by themselves."""

LEAST_COSINE = 0.9999
"""The least cosine between two members' vectors of a text, where a looser member may join."""

TOP = 5

_WORDS = (
    *("retrieval", "vector", "river", "cluster", "index", "sentence", "mountain", "garden"),
    *("latency", "copper", "violin", "harbour", "winter", "theorem", "bridge", "lemon"),
    *("pressure", "archive", "planet", "cotton", "syntax", "glacier", "market", "engine"),
)


def probe_texts() -> tuple[str, ...]:
    """Return 16 texts of 1 to about 200 words, each about something else."""
    sizes = (1, 2, 3, 5, 8, 12, 16, 24, 4, 6, 10, 20, 40, 60, 100, 200)
    return tuple(
        " ".join(_WORDS[(7 * row + (row + 1) * place) % len(_WORDS)] for place in range(size))
        for row, size in enumerate(sizes)
    )


@dataclass(frozen=True, slots=True)
class Fidelity:
    """The nearness of a member's vectors of the probes to the first member's.

    Args:
        difference: the largest of any component, over the first's largest one if above 1.
        cosine: the smallest of any text.
        same_top: whether each probe has the same nearest five others, in the same order.
    """

    difference: float
    cosine: float
    same_top: bool

    @property
    def is_exact(self) -> bool:
        """Tell whether such a member joins by itself."""
        return self.difference <= EXACT

    @property
    def is_same_model(self) -> bool:
        """Tell whether a member that gave these vectors before still is the same model."""
        return self.cosine >= LEAST_COSINE

    def is_within(self, tolerance: float | None) -> bool:
        """Tell whether such a member joins a group with this tolerance."""
        if self.is_exact or tolerance is None:
            return self.is_exact
        return self.difference <= tolerance and self.cosine >= LEAST_COSINE and self.same_top

    def __str__(self) -> str:
        top = "equal" if self.same_top else "another"
        return (
            f"largest difference {self.difference:.2g}, smallest cosine {self.cosine:.6f}, "
            f"{top} top {TOP}"
        )


def embedded(member: Member, texts: Sequence[str], role: Role, threads: int) -> Vector:
    """Return a member's vectors of some texts, checked: ``[len(texts), dim], float32``.

    Raises:
        EngineOutputError: a wrong number of vectors, different dimensions, NaN or infinity.
        Exception: what the member raised.
    """
    return checked(member.embed(texts, role, threads), len(texts), None)


def checked(values: Any, count: int, dimension: int | None) -> Vector:
    """Return a member's vectors as ``[count, dimension], float32``, each of a finite length.

    Raises:
        EngineOutputError: a wrong number of vectors or dimension, NaN or infinity, or components so
            large that no search can compare them in float32.
    """
    found = _checked(values, count, dimension)
    with np.errstate(over="ignore"):  # becomes infinite, which is refused
        squares = np.einsum("ij,ij->i", found, found)
    if not np.isfinite(squares).all():
        raise EngineOutputError(
            "the length of an embedding is not finite",
            found=f"a component of {float(np.abs(found).max()):.2g}",
            valid="lengths below 1.8e19, whose squares float32 has",
        )
    return found


def _checked(values: Any, count: int, dimension: int | None) -> Vector:
    values = checked_rows(values, count)
    if is_checked(values, dimension):
        return values
    rows: list[Vector] = []
    for row in values:
        rows.append(checked_vector(row, dimension))
        dimension = len(rows[-1])
    return np.stack(rows)


def compare(first: Vector, other: Vector) -> Fidelity:
    """Return how near ``other`` is to ``first``, both ``[texts, dim], float32``."""
    left, right = first.astype(np.float64), other.astype(np.float64)
    scale = max(1.0, float(np.abs(left).max()))
    difference = float(np.abs(left - right).max()) / scale
    left, right = _normalised(left), _normalised(right)
    cosine = float((left * right).sum(axis=1).min())
    return Fidelity(difference, cosine, bool((_nearest(left) == _nearest(right)).all()))


def _normalised(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(lengths, 1e-12)


def _nearest(vectors: NDArray[np.float64]) -> NDArray[np.intp]:
    scores = vectors @ vectors.T
    np.fill_diagonal(scores, -np.inf)
    return np.argsort(-scores, axis=1, kind="stable")[:, :TOP]
