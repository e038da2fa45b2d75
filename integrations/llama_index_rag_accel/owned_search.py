"""Searches of LlamaIndex's own in-memory store on an owned engine, batched across requests."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import VectorStoreQuery, VectorStoreQueryMode

from llama_index_rag_accel.concurrency.offload import leaving_within
from rag_accel.accelerator import RequestIdentity
from rag_accel.adoption.copied_search import CopiedSearch, is_due, left_to_its_store
from rag_accel.adoption.known_classes import overrides
from rag_accel.adoption.store_copies import is_large, size_obstacle
from rag_accel.interception.leaf_table import LeafMethod
from rag_accel.system.methods import plain_class
from rag_accel.system.weak_maps import ByClass
from rag_accel_adapters.llama_index.stores import SIMPLE, searches_as_known, searches_unchanged

Method = Callable[..., Any]


#: tells whether an owned engine may search stores of a class
is_recognised = ByClass(lambda cls: searches_as_known(plain_class(cls)))


def why_not_searched(store: Any) -> str | None:
    """Return why no engine searches a store; empty where one does, None for another object."""
    if not isinstance(store, SimpleVectorStore):
        return None
    cls = plain_class(type(store))
    if not is_recognised(cls):
        return overrides(cls, SimpleVectorStore)
    if not searches_unchanged(store):
        return "what it searches with was replaced"
    return size_obstacle(SIMPLE, store) or ""


def may_be_owned(store: Any) -> bool:
    """Tell whether an owned engine may search a store: of a small one it never does."""
    return is_recognised(type(store)) and is_large(SIMPLE, store)


def searching(original: Method, leaf: LeafMethod, borrowed: Method) -> Method:
    """Return the scheduled version of a store's search that uses an owned engine where it pays.

    Any other search is the store's own, which leaves its loop where it may.

    Args:
        original: the store's method.
        leaf: its row.
        borrowed: the scheduled version of the store's own search.
    """
    its_own = leaving_within(original, leaf, borrowed)

    def sync(identity: RequestIdentity, self: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_recognised(type(self)):
            return its_own(identity, self, *args, **kwargs)
        plain = partial(its_own, identity, self, *args, **kwargs)
        query = _query(self, args, kwargs)
        if query is None:
            return plain()
        search = _search(identity, self, query)
        return search.find(query.query_embedding, query.similarity_top_k, plain)

    async def coroutine(identity: RequestIdentity, self: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_recognised(type(self)):
            return await its_own(identity, self, *args, **kwargs)

        async def plain() -> Any:
            # It calls the sync method.
            with left_to_its_store():
                return await its_own(identity, self, *args, **kwargs)

        query = _query(self, args, kwargs)
        if query is None or not is_due(SIMPLE, self):
            return await plain()
        search = _search(identity, self, query)
        return await search.afind(query.query_embedding, query.similarity_top_k, plain)

    return coroutine if leaf.flavour == "coroutine" else sync


def _search(identity: RequestIdentity, store: Any, query: VectorStoreQuery) -> CopiedSearch:
    if query.node_ids is None:
        return CopiedSearch(identity, SIMPLE, store)
    ids = query.node_ids  # retrievers name all nodes that their index had when they were made
    return CopiedSearch(identity, SIMPLE, store, lambda look: set(ids).issuperset(look.parts))


def _query(store: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> VectorStoreQuery | None:
    """Return what is asked of a store, if the copy of one can answer: the nearest of all nodes."""
    query = args[0] if len(args) == 1 else kwargs.get("query") if not args else None
    if type(query) is not VectorStoreQuery or query.mode is not VectorStoreQueryMode.DEFAULT:
        return None
    if query.filters is not None or type(query.node_ids) not in (list, type(None)):
        return None
    # In this order: of a small store, the search may take no longer than without us.
    is_fit = is_large(SIMPLE, store) and searches_unchanged(store)
    return query if is_fit else None
