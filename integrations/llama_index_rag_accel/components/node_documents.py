"""Nodes as documents of an index, and what a query asks of them besides being near."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
)
from llama_index.core.vector_stores.utils import (
    build_metadata_filter_fn,
    metadata_dict_to_node,
    node_to_metadata_dict,
)

from rag_accel.engine_api import Document
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
