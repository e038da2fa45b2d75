"""LlamaIndex's nodes in what a search or a postprocessor returned, as they stand in prompts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, QueryBundle
from llama_index.core.vector_stores.types import VectorStoreQuery, VectorStoreQueryResult


def documents_in(result: Any) -> Iterator[tuple[str, str]]:
    """Yield the id and the texts of each node: with its lines of metadata, and without."""
    found: Any = result.nodes if isinstance(result, VectorStoreQueryResult) else result
    if not isinstance(found, list | tuple):
        return
    for one in cast("list[Any]", found):
        node = one.node if isinstance(one, NodeWithScore) else one
        if not isinstance(node, BaseNode):
            continue
        forms = (MetadataMode.LLM, MetadataMode.NONE)
        for text in dict.fromkeys(node.get_content(metadata_mode=form) for form in forms):
            yield node.node_id, text


#: what holds the question of a search; asked of every argument, and a union takes long to make
_ASKING = (QueryBundle, VectorStoreQuery)


def question_in(value: Any) -> str | None:
    """Return the question of a search or a postprocessor, where this argument is one."""
    if isinstance(value, _ASKING):
        return value.query_str
    return value if isinstance(value, str) else None
