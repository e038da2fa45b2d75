"""The two rankings of a hybrid search: their settings, and their fusion into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rag_accel.engine_api import HybridQuery, ScoredDocument
from rag_accel.engines.retrieval.hybrid.fusion import (
    RANK_CONSTANT,
    check_number,
    reciprocal_rank_fusion,
)
from rag_accel.engines.retrieval.hybrid.lexical_spec import LexicalSpec
from rag_accel.engines.retrieval.vectors.checks import check_count
from rag_accel.engines.retrieval.vectors.spec import check_positive
from rag_accel.errors import ConfigError


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
        """Return these settings with the weights and depths that a query overrides.

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
    return [ScoredDocument(documents[item.item], item.score) for item in fused]


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
