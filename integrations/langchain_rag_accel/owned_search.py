"""Searches of recognised vector stores on an owned engine, batched across requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_core.vectorstores.utils import maximal_marginal_relevance

from rag_accel.accelerator import RequestIdentity
from rag_accel.adoption.copied_search import CopiedSearch, is_due, left_to_its_store
from rag_accel.adoption.known_classes import overrides
from rag_accel.adoption.store_copies import is_large, size_obstacle
from rag_accel.interception.leaf_call import inside, is_nested
from rag_accel.interception.leaf_table import LeafMethod
from rag_accel.system.methods import plain_class, plain_method
from rag_accel.system.weak_maps import ByClass
from rag_accel_adapters.langchain.stores import (
    IN_MEMORY,
    Found,
    searches_as_known,
    searches_unchanged,
)

Method = Callable[..., Any]


#: tells whether an owned engine may search stores of a class
is_recognised = ByClass(lambda cls: searches_as_known(plain_class(cls)))


def why_not_searched(store: Any) -> str | None:
    """Return why no engine searches a store; empty where one does, None for another object."""
    if not isinstance(store, InMemoryVectorStore):
        return None
    cls = plain_class(type(store))
    if not is_recognised(cls):
        return overrides(cls, InMemoryVectorStore)
    if not searches_unchanged(store):
        return "what it searches with was replaced"
    return size_obstacle(IN_MEMORY, store) or ""


def is_plain_within(store: Any, identity: RequestIdentity) -> bool:
    """Tell whether a store only does its own work, as part of a retriever's call: a small one."""
    return is_recognised(type(store)) and not is_large(IN_MEMORY, store)


def searching(original: Method, leaf: LeafMethod, borrowed: Method) -> Method:
    """Return the scheduled version of a store's search that uses an owned engine where it pays.

    ``borrowed`` is the one for any other search. ``leaf`` is the method in which a recognised
    store looks at its vectors, or a coroutine that would call it on the loop.
    """

    def sync(identity: RequestIdentity, self: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_recognised(type(self)):
            return borrowed(identity, self, *args, **kwargs)
        plain = partial(original, self) if is_nested(self) else partial(borrowed, identity, self)
        if not _may_be_owned(self):
            return plain(*args, **kwargs)
        return _StoreSearch(identity, self, plain).find(*args, **kwargs)

    async def coroutine(identity: RequestIdentity, self: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_recognised(type(self)):
            return await borrowed(identity, self, *args, **kwargs)
        plain = partial(original, self) if is_nested(self) else partial(borrowed, identity, self)
        if not _may_be_owned(self):
            return await plain(*args, **kwargs)
        if is_due(IN_MEMORY, self):
            search = _StoreSearch(identity, self, _unit_of(self))
            with inside(None, identity):  # its embeddings are called here
                return await _ASYNC[leaf.name](search, *args, **kwargs)
        with left_to_its_store():
            return await plain(*args, **kwargs)

    return coroutine if leaf.flavour == "coroutine" else sync


def _may_be_owned(store: Any) -> bool:
    # In this order: of a small store, the search may take no longer than without us.
    return is_large(IN_MEMORY, store) and searches_unchanged(store)


def _unit_of(store: Any) -> Method:
    method = plain_method(type(store), UNIT)
    assert method is not None, "a recognised store has it"
    return partial(method, store)


#: where an ``InMemoryVectorStore`` looks at its vectors
UNIT = "_similarity_search_with_score_by_vector"


@dataclass(frozen=True, slots=True)
class _StoreSearch:
    """The search of one store for one run; ``plain`` is how the store does it."""

    identity: RequestIdentity
    store: Any
    plain: Method

    def find(self, embedding: Any, k: Any = 4, filter: Any = None) -> Found:
        """Return documents, scores and vectors, best first."""
        plain = partial(self.plain, embedding, k, filter)
        return plain() if filter is not None else self._copied.find(embedding, k, plain)

    async def afind(self, embedding: Any, k: Any = 4, filter: Any = None, **_: Any) -> Found:
        """Do as ``find`` without blocking the loop."""

        async def plain() -> Found:
            return self.plain(embedding, k, filter)

        if filter is not None:
            return await plain()
        return await self._copied.afind(embedding, k, plain)

    @property
    def _copied(self) -> CopiedSearch:
        return CopiedSearch(self.identity, IN_MEMORY, self.store)


async def _with_score(search: _StoreSearch, query: str, k: int = 4, **how: Any) -> list[Any]:
    embedding = await search.store.embedding.aembed_query(query)
    return [(document, score) for document, score, _ in await search.afind(embedding, k, **how)]


async def _by_text(search: _StoreSearch, query: str, k: int = 4, **how: Any) -> list[Document]:
    return [document for document, _ in await _with_score(search, query, k, **how)]


async def _by_vector(
    search: _StoreSearch, embedding: Any, k: int = 4, **how: Any
) -> list[Document]:
    return [document for document, _, _ in await search.afind(embedding, k, **how)]


async def _diverse(
    search: _StoreSearch,
    query: str,
    k: int = 4,
    fetch_k: int = 20,
    lambda_mult: float = 0.5,
    **how: Any,
) -> list[Document]:
    embedding = await search.store.embedding.aembed_query(query)
    found = await search.afind(embedding, fetch_k, **how)
    chosen = maximal_marginal_relevance(
        np.array(embedding, dtype=np.float32),
        [vector for _, _, vector in found],
        k=k,
        lambda_mult=lambda_mult,
    )
    return [found[place][0] for place in chosen]


_ASYNC: dict[str, Callable[..., Awaitable[Any]]] = {
    "asimilarity_search": _by_text,
    "asimilarity_search_with_score": _with_score,
    "asimilarity_search_by_vector": _by_vector,
    "amax_marginal_relevance_search": _diverse,
}

OWNED_COROUTINES = frozenset(_ASYNC)
