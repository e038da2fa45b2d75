"""The rankings by vector and by words, merged as a specification says."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np

from rag_accel.engine_api import HybridQuery, ScoredDocument
from rag_accel.engines.retrieval.hybrid.terms import LexicalSpec
from rag_accel.engines.retrieval.vectors.spec import check_count, check_positive
from rag_accel.errors import ConfigError

# Merge several rankings of the same things by the ranks alone (reciprocal-rank fusion).
#
# G. V. Cormack, C. L. A. Clarke, S. Buettcher, "Reciprocal Rank Fusion outperforms Condorcet and
# individual Rank Learning Methods", SIGIR 2009: an item scores the sum of ``1 / (k + rank)`` over
# the rankings that list it, ranks counted from 1. Scores of the rankings themselves, which have
# different units, are not looked at.

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
    limit: int | None = None,
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
        limit: how many to return at most; None returns all, 0 and below none.

    Raises:
        ConfigError: a weight, ``k`` or ``limit`` is no number of that range, or the number of
            weights is not that of the rankings.
    """
    lists = [list(ranking) for ranking in rankings]
    check_number("k", k)
    _check_limit(limit)
    shares: dict[ItemT, list[float]] = {}
    for ranking, weight in zip(lists, _checked_weights(weights, len(lists)), strict=True):
        if weight > 0:
            for rank, item in enumerate(dict.fromkeys(ranking), start=1):
                shares.setdefault(item, []).append(weight / (k + rank))
    fused = [FusedItem(item, math.fsum(parts)) for item, parts in shares.items()]
    fused.sort(key=lambda one: -one.score)  # stable: equal scores keep the order of first mention
    return fused if limit is None else fused[: max(0, limit)]


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


def _check_limit(limit: object) -> None:
    is_whole = isinstance(limit, int | np.integer) and not isinstance(limit, bool)
    if limit is not None and not is_whole:
        raise ConfigError(
            "bad number of results",
            where="limit",
            found=repr(limit),
            valid="an integer, or None for all",
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


# Say how the two rankings of a hybrid search are taken. It searches nothing.


@dataclass(frozen=True, slots=True)
class HybridSpec:
    """The settings of hybrid search.

    Args:
        dense_depth: documents taken from the ranking by vector; ``k`` of them if that is more.
        lexical_depth: the same for the ranking by words.
        max_depth: largest ``k`` and largest depth.
        dense_weight: how much the ranking by vector counts in the fusion.
        lexical_weight: the same for the ranking by words; not both may be 0.
        rank_constant: ``k`` of the fusion, see ``reciprocal_rank_fusion``.
        lexical: how texts become terms and how they are weighed.

    Raises:
        ConfigError: on a value outside its range.
    """

    dense_depth: int = 50
    lexical_depth: int = 50
    max_depth: int = 1000
    dense_weight: float = 1.0
    lexical_weight: float = 1.0
    rank_constant: float = RANK_CONSTANT
    lexical: LexicalSpec = field(default_factory=LexicalSpec)

    def __post_init__(self) -> None:
        check_positive("max_depth", self.max_depth)
        for name in ("dense_depth", "lexical_depth"):
            check_positive(name, getattr(self, name))
            _check_depth(name, getattr(self, name), self.max_depth)
        for name in ("dense_weight", "lexical_weight", "rank_constant"):
            check_number(name, getattr(self, name))
        if not (self.dense_weight or self.lexical_weight):
            raise ConfigError(
                "a hybrid search in which nothing counts",
                where="dense_weight and lexical_weight",
                found="0 and 0",
                valid="one of them above 0",
            )

    def of_query(self, query: HybridQuery) -> HybridSpec:
        """Return these settings with the weights and depths that a query has of its own.

        Raises:
            ConfigError: one of them is outside its range, or they are no pair.
        """
        if query.weights is None and query.depths == (None, None):
            return self
        weights = self.dense_weight, self.lexical_weight
        if query.weights is not None:
            weights = _pair("weights", query.weights)
        dense_depth, lexical_depth = _pair("depths", query.depths)
        return replace(
            self,
            dense_weight=weights[0],
            lexical_weight=weights[1],
            dense_depth=self.dense_depth if dense_depth is None else dense_depth,
            lexical_depth=self.lexical_depth if lexical_depth is None else lexical_depth,
        )

    def check_k(self, k: Any) -> None:
        """Raise ConfigError unless ``k`` is an integer of at most ``max_depth``."""
        check_count(k)
        _check_depth("k", k, self.max_depth)


def fuse_rankings(
    dense: Sequence[ScoredDocument], worded: Sequence[ScoredDocument], spec: HybridSpec
) -> list[ScoredDocument]:
    """Return all documents of two rankings with the scores of their fusion, best first.

    Of a document in both rankings the one of ``dense`` is taken.
    """
    documents = {hit.document.id: hit.document for hit in (*worded, *dense)}
    fused = reciprocal_rank_fusion(
        [[hit.document.id for hit in ranking] for ranking in (dense, worded)],
        (spec.dense_weight, spec.lexical_weight),
        spec.rank_constant,
    )
    return [ScoredDocument(documents[one.item], one.score) for one in fused]


def _pair(name: str, value: Any) -> tuple[Any, Any]:
    if isinstance(value, tuple) and len(value) == 2:  # type: ignore[arg-type]
        return value  # type: ignore[return-value]
    raise ConfigError(
        "a hybrid query with a bad pair",
        where=name,
        found=repr(value),
        valid="a tuple of two: for the ranking by vector, and for that by words",
    )


def _check_depth(name: str, value: Any, max_depth: int) -> None:
    if value > max_depth:
        raise ConfigError(
            "more results than a hybrid search ranks",
            where=name,
            found=value,
            valid=f"at most max_depth = {max_depth}",
            hint="give the engine a HybridSpec with a larger max_depth",
        )
