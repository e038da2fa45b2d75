"""Comparison of a member's vectors with the first member's, on texts that both embed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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

_TINY = 1e-12  # no vector of a model is shorter

LEAST_DRIFT, MOST_DRIFT = 1e-3, 0.1
"""The bounds of how far a member's vectors may drift once it has joined, as parts of their own."""

TIMES = 4.0
"""How many times as far as when a member joined: its kernels round each batch in another way."""

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
        drift: the largest of any component, over the largest one of the first's vector.
        length: the largest of any vector's length, over that of the first's.
    """

    difference: float
    cosine: float
    same_top: bool
    drift: float
    length: float

    @property
    def is_exact(self) -> bool:
        """Tell whether such a member joins by itself."""
        return self.difference <= EXACT

    def is_within(self, tolerance: float | None) -> bool:
        """Tell whether such a member joins a group with this tolerance."""
        if self.is_exact or tolerance is None:
            return self.is_exact
        is_near = max(self.difference, self.length) <= tolerance
        return is_near and self.cosine >= LEAST_COSINE and self.same_top

    def is_same_as(self, joined: Fidelity, tolerance: float | None) -> bool:
        """Tell whether a member is the same model still.

        Args:
            joined: what it was when it joined.
            tolerance: as of ``is_within``.
        """
        drift, length = (
            min(MOST_DRIFT, max(LEAST_DRIFT, TIMES * before))
            for before in (joined.drift, joined.length)
        )
        is_near = self.drift <= drift and self.length <= length
        return (is_near and self.cosine >= LEAST_COSINE) or self.is_within(tolerance)

    def __str__(self) -> str:
        top = "equal" if self.same_top else "another"
        length = f", lengths differ by {self.length:.2g}" if self.length > LEAST_DRIFT else ""
        return (
            f"largest difference {self.difference:.2g}, smallest cosine {self.cosine:.6f}, "
            f"{top} top {TOP}{length}"
        )


def worst(parts: Iterable[Fidelity]) -> Fidelity:
    """Return the largest differences of several comparisons; there is at least one."""
    parts = list(parts)
    return Fidelity(
        max(part.difference for part in parts),
        min(part.cosine for part in parts),
        all(part.same_top for part in parts),
        max(part.drift for part in parts),
        max(part.length for part in parts),
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
    differences, largest = np.abs(left - right).max(axis=1), np.abs(left).max(axis=1)
    difference = float(differences.max()) / max(1.0, float(largest.max()))
    drift = float((differences / np.maximum(largest, _TINY)).max())
    own, others = _lengths(left), _lengths(right)
    length = float((np.abs(others - own) / own).max())
    left, right = left / own, right / others
    cosine = float((left * right).sum(axis=1).min())
    same_top = bool((_nearest(left) == _nearest(right)).all())
    return Fidelity(difference, cosine, same_top, drift, length)


def _lengths(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), _TINY)


def _nearest(vectors: NDArray[np.float64]) -> NDArray[np.intp]:
    scores = vectors @ vectors.T
    np.fill_diagonal(scores, -np.inf)
    return np.argsort(-scores, axis=1, kind="stable")[:, :TOP]
