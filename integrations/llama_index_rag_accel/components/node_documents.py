"""Nodes as documents of an index, and queries of LlamaIndex as searches of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
)
from llama_index.core.vector_stores.utils import (
    build_metadata_filter_fn,
    metadata_dict_to_node,
    node_to_metadata_dict,
)

from rag_accel.engine_api import Document, HybridQuery, SearchQuery
from rag_accel.errors import ConfigError
from rag_accel_adapters.llama_index.documents import documents_in

Condition = Callable[[Document], bool]

OPERATORS = frozenset(
    {
        FilterOperator.EQ,
        FilterOperator.NE,
        FilterOperator.GT,
        FilterOperator.GTE,
        FilterOperator.LT,
        FilterOperator.LTE,
        FilterOperator.IN,
        FilterOperator.NIN,
        FilterOperator.ANY,
        FilterOperator.ALL,
        FilterOperator.TEXT_MATCH,
        FilterOperator.TEXT_MATCH_INSENSITIVE,
        FilterOperator.CONTAINS,
        FilterOperator.IS_EMPTY,
    }
)


def as_document(node: BaseNode) -> Document:
    """Return a node as an index keeps it: all of it in its metadata, but for its embedding."""
    text = ""
    with suppress(NotImplementedError, ValueError):  # a node without text
        text = node.get_content()
    return Document(node.node_id, text, node_to_metadata_dict(node, flat_metadata=False))


def as_node(document: Document) -> BaseNode:
    """Return the node that a document was made of, without its embedding."""
    return metadata_dict_to_node(dict(document.metadata))


def texts_in(document: Document) -> list[str]:
    """Return the texts of a node as they stand in prompts."""
    return [text for _, text in documents_in([as_node(document)])]


def check_filters(filters: MetadataFilters | None) -> None:
    """Raise ConfigError for a filter that no node can be compared with."""
    for one in filters.filters if filters is not None else ():
        if not isinstance(one, MetadataFilter):
            raise ConfigError(
                "nested filters are not supported",
                where="filters",
                found=repr(one),
                valid="one list of MetadataFilter",
            )
        if one.operator not in OPERATORS:
            raise ConfigError(
                "a filter operator that is not supported",
                where=f"filter on {one.key!r}",
                found=repr(one.operator),
                valid=", ".join(sorted(operator.value for operator in OPERATORS)),
            )


def equal_values(filters: MetadataFilters | None) -> Mapping[str, Any] | None:
    """Return the values that fields must equal, if that is all which filters ask for."""
    if filters is None or not filters.filters:
        return {}
    if filters.condition not in (FilterCondition.AND, None):
        return None
    values: dict[str, Any] = {}
    for filter_ in filters.filters:
        if not isinstance(filter_, MetadataFilter) or filter_.operator != FilterOperator.EQ:
            return None
        if not isinstance(filter_.value, str | int | float) or filter_.key in values:
            return None
        values[filter_.key] = filter_.value
    return values


def condition(
    filters: MetadataFilters | None,
    node_ids: Sequence[str] | None = None,
    doc_ids: Sequence[str] | None = None,
) -> Condition:
    """Return whether a document passes filters, and is one of these nodes, of these sources.

    None stands for all. The filters compare as those of upstream's simple store do.
    """
    nodes = None if node_ids is None else frozenset(node_ids)
    sources = None if doc_ids is None else frozenset(doc_ids)
    looked_at: dict[str, Document] = {}
    passes = build_metadata_filter_fn(lambda id: looked_at[id].metadata, filters)

    def holds(document: Document) -> bool:
        if nodes is not None and document.id not in nodes:
            return False
        if sources is not None and document.metadata.get("ref_doc_id") not in sources:
            return False
        looked_at.clear()
        looked_at[document.id] = document
        return passes(document.id)

    return holds


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
