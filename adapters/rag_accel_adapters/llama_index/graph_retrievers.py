"""LlamaIndex's retrievers over a property graph, whose hops over its own store share steps.

``VectorContextRetriever`` and ``LLMSynonymRetriever`` find nodes and ask their store what is around
these; only that is done for several requests at once. All the rest is theirs: how nodes are found,
scores, order, texts.
"""

from __future__ import annotations

from typing import Any

from llama_index.core.graph_stores.simple_labelled import SimplePropertyGraphStore
from llama_index.core.indices.property_graph import LLMSynonymRetriever, VectorContextRetriever
from llama_index.core.indices.property_graph.sub_retrievers.base import BasePGRetriever

from rag_accel.system.classes import full_name
from rag_accel.system.methods import plain_class
from rag_accel_adapters.libraries.written_methods import PlainMethod, WrittenMethods
from rag_accel_adapters.llama_index import graph_stores

_EVERY = (
    "_retrieve",
    "_aretrieve",
    "retrieve_from_graph",
    "aretrieve_from_graph",
    "_get_nodes_with_score",
    "_add_source_text",
    "add_source_text",
    "async_add_source_text",
)
_METHODS: dict[type, WrittenMethods] = {
    VectorContextRetriever: WrittenMethods(
        (),
        (
            *_EVERY,
            "_build_vector_store_query",
            "_get_vector_store_query",
            "_aget_vector_store_query",
            "_get_kg_ids",
        ),
    ),
    LLMSynonymRetriever: WrittenMethods(
        (), (*_EVERY, "_parse_llm_output", "_prepare_matches", "_aprepare_matches")
    ),
}


def obstacle_to_sharing(retriever: BasePGRetriever, method: PlainMethod) -> str | None:
    """Return why the hops of a retriever share no steps with others; None where they may.

    Cheap, since each search asks it: how large the store is and what it holds is not looked at.

    Args:
        retriever: the retriever.
        method: returns a class's method as its program wrote it.
    """
    cls = plain_class(type(retriever))
    methods = _METHODS.get(cls)
    if methods is None:
        return f"{full_name(cls)} is not one of LlamaIndex's two that find nodes in the graph"
    if not methods.are_plain(retriever, cls, method):
        return "one of its methods was replaced"
    if getattr(retriever, "_filters", None) is not None:
        return "it filters the nodes that it begins with"
    store: Any = retriever._graph_store
    cls = plain_class(type(store))
    if cls is not SimplePropertyGraphStore:
        return f"its store is a {full_name(cls)}, which is asked itself"
    is_known = graph_stores.searches_as_known(cls) and graph_stores.searches_unchanged(store)
    return None if is_known else "the searches of its store are not those that are known"


def obstacle_of_size(store: SimplePropertyGraphStore) -> str | None:
    """Return why the hops over a recognised store share no steps as it is; None where they may."""
    size, least = len(store.graph.triplets), graph_stores.MIN_SHARED_TRIPLETS
    if size >= least:
        return None
    return f"its store holds {size} triplets, a step is faster from {least} on"
