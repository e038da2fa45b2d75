"""Reciprocal-rank fusion: several rankings of the same items merged by their ranks alone.

G. V. Cormack, C. L. A. Clarke, S. Buettcher, "Reciprocal Rank Fusion outperforms Condorcet and
individual Rank Learning Methods", SIGIR 2009: an item scores the sum of ``1 / (k + rank)`` over
the rankings that list it, ranks counted from 1. The scores of the rankings, which have different
units, are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from rag_accel.errors import ConfigError

RANK_CONSTANT = 60
"""The paper's ``k``; the larger it is, the less the first ranks stand out."""

MAX_NUMBER = 1e9
"""Largest weight and largest ``k``: no sum of shares overflows, and ranks stay distinct."""

ItemT = TypeVar("ItemT", bound=Hashable)


@dataclass(frozen=True, slots=True)
class FusedItem(Generic[ItemT]):
    """One item and its fused score (higher is better)."""

    item: ItemT
    score: float


def reciprocal_rank_fusion(
    rankings: Iterable[Iterable[ItemT]],
    weights: Sequence[float] | None = None,
    k: float = RANK_CONSTANT,
) -> list[FusedItem[ItemT]]:
    """Return the items of all rankings, best first: score = sum of ``weight / (k + rank)``.

    Equal scores are ordered by the first ranking that lists the item and by the rank there, so the
    result depends on the arguments alone. A score is the exact sum of its shares rounded once: it
    does not depend on the order of the rankings.

    Args:
        rankings: items, best first; an item that one ranking repeats counts there once, and the
            repetition takes no rank.
        weights: how much each ranking counts, one number each; by default 1. What only rankings
            of weight 0 list is left out.
        k: the constant of the paper, 0 to ``MAX_NUMBER``.

    Raises:
        ConfigError: a weight or ``k`` is no number of that range, or the number of
            weights is not that of the rankings.
    """
    lists = [list(ranking) for ranking in rankings]
    check_number("k", k)
    shares: dict[ItemT, list[float]] = {}
    for ranking, weight in zip(lists, _checked_weights(weights, len(lists)), strict=True):
        if weight > 0:
            for rank, item in enumerate(dict.fromkeys(ranking), start=1):
                shares.setdefault(item, []).append(weight / (k + rank))
    fused = [FusedItem(item, math.fsum(parts)) for item, parts in shares.items()]
    # sorted() is stable: equal scores keep the order of first mention.
    return sorted(fused, key=lambda entry: -entry.score)


def check_number(name: str, value: Any) -> None:
    """Raise ConfigError unless ``value`` is a number from 0 to ``MAX_NUMBER``."""
    is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(
        value, bool
    )
    if not (is_number and 0 <= value <= MAX_NUMBER):
        raise ConfigError(
            "bad number for a fusion of rankings",
            where=name,
            found=repr(value),
            valid=f"a number from 0 to {MAX_NUMBER:g}",
        )


def _checked_weights(weights: Sequence[float] | None, count: int) -> Sequence[float]:
    if weights is None:
        return [1.0] * count
    if len(weights) != count:
        raise ConfigError(
            "wrong number of weights",
            where="weights",
            found=len(weights),
            valid=f"{count}, one for each ranking",
        )
    for place, weight in enumerate(weights):
        check_number(f"weights[{place}]", weight)
    return weights
