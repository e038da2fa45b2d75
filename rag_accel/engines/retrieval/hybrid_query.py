"""Say what a hybrid search is asked and how its two rankings are taken. It searches nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rag_accel.engine_api import SearchQuery
from rag_accel.engines.retrieval.checks import check_count
from rag_accel.engines.retrieval.fusion import RANK_CONSTANT, check_number
from rag_accel.engines.retrieval.index_spec import check_positive
from rag_accel.engines.retrieval.lexical_spec import LexicalSpec
from rag_accel.errors import ConfigError


@dataclass(frozen=True, slots=True)
class HybridQuery(SearchQuery):
    """Ask for the ``k`` documents nearest to ``vector`` and to the words of ``text`` together.

    A search query that also says its text: an engine that searches by vector alone runs it as one,
    with the same ``vector: [dim], float32``, ``k``, ``where`` and ``nprobe``. The final value is
    ``tuple[ScoredDocument, ...]``, best first; its scores are those of the fusion.
    """

    text: str = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class HybridSpec:
    """Configure a hybrid search.

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

    def check_k(self, k: Any) -> None:
        """Raise ConfigError unless ``k`` is an integer of at most ``max_depth``."""
        check_count(k)
        _check_depth("k", k, self.max_depth)


def _check_depth(name: str, value: Any, max_depth: int) -> None:
    if value > max_depth:
        raise ConfigError(
            "more results than a hybrid search ranks",
            where=name,
            found=value,
            valid=f"at most max_depth = {max_depth}",
            hint="give the engine a HybridSpec with a larger max_depth",
        )
