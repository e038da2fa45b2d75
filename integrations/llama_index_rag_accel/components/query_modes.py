"""Queries of LlamaIndex as searches of an index, and the modes that there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from llama_index.core.vector_stores.types import VectorStoreQuery, VectorStoreQueryMode

from rag_accel.engine_api import HybridQuery, SearchQuery
from rag_accel.errors import ConfigError

_MODES = (VectorStoreQueryMode.DEFAULT, VectorStoreQueryMode.HYBRID)

_HINTS = {
    VectorStoreQueryMode.SPARSE: "hybrid with alpha=0 ranks by words alone",
    VectorStoreQueryMode.TEXT_SEARCH: "hybrid with alpha=0 ranks by words alone",
    VectorStoreQueryMode.SEMANTIC_HYBRID: "hybrid ranks by vectors and words, without a reranker",
}


def query_mode(mode: VectorStoreQueryMode | str) -> VectorStoreQueryMode:
    """Return the mode of this name; raises ConfigError if there is none."""
    try:
        return VectorStoreQueryMode(mode)
    except ValueError:
        raise ConfigError(
            "a query mode that LlamaIndex does not know",
            where="vector_store_query_mode",
            found=repr(mode),
            valid=" or ".join(repr(one.value) for one in VectorStoreQueryMode),
        ) from None


def check_query(query: VectorStoreQuery) -> None:
    """Raise ConfigError for a mode that there is not, or a query without a vector."""
    if query.mode not in _MODES:
        raise ConfigError(
            "a query mode that this store does not know",
            where="query.mode",
            found=repr(query.mode),
            valid=" or ".join(map(repr, _MODES)),
            hint=_HINTS.get(query.mode),
        )
    if query.query_embedding is None:
        raise ConfigError(
            "a query without a vector",
            where="query.query_embedding",
            found="None",
            valid="the embedding of the question",
        )


def search_query(query: VectorStoreQuery, where: Mapping[str, Any] | None) -> SearchQuery:
    """Return the search that a query asks for: of hybrid mode, a ``HybridQuery``.

    The best ``hybrid_top_k`` are found, or ``similarity_top_k`` where that is None. Where it is
    not, ``similarity_top_k`` documents are taken of the ranking by vector. ``sparse_top_k`` are
    taken of that by words.

    Raises:
        ConfigError: a hybrid query without a text, or ``alpha`` out of range.
    """
    if query.mode != VectorStoreQueryMode.HYBRID:
        return SearchQuery(query.query_embedding, query.similarity_top_k, where)
    if not isinstance(query.query_str, str):
        raise ConfigError(
            "a hybrid query without words",
            where="query.query_str",
            found=repr(query.query_str),
            valid="the text of the question",
        )
    k, dense_depth = query.hybrid_top_k, query.similarity_top_k
    if k is None:
        k, dense_depth = query.similarity_top_k, None
    return HybridQuery(
        query.query_embedding,
        k,
        where,
        text=query.query_str,
        weights=_weights(query.alpha),
        depths=(dense_depth, query.sparse_top_k),
    )


def _weights(alpha: Any) -> tuple[float, float] | None:
    if alpha is None:
        return None
    is_number = isinstance(alpha, int | float | np.integer | np.floating)
    if isinstance(alpha, bool) or not is_number or not 0 <= alpha <= 1:
        raise ConfigError(
            "bad weight of a hybrid query",
            where="query.alpha",
            found=repr(alpha),
            valid="a number from 0 (words alone) to 1 (vectors alone), or None",
        )
    weight = float(alpha)
    return weight, 1 - weight
