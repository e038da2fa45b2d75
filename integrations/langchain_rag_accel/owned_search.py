"""Searches of recognised vector stores on an owned engine, batched across requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from langchain_core.documents import Document
from langchain_core.vectorstores.utils import maximal_marginal_relevance

from rag_accel.accelerator import RequestIdentity, Work
from rag_accel.adoption.owned_or_plain import aowned_or_plain, owned_or_plain
from rag_accel.engine_api import Engine, PrimitiveKind, SearchQuery
from rag_accel.interception.identity import scoped
from rag_accel.interception.leaf_call import inside, is_nested, meters, note_leaf
from rag_accel.interception.leaf_table import LeafMethod, plain_class, plain_method
from rag_accel_adapters.langchain.stores import (
    CopiedVectors,
    Found,
    StoreView,
    copy_of,
    found_by,
    is_large,
    search_query,
    searches_as_known,
    searches_unchanged,
)

Method = Callable[..., Any]

#: how often a search is begun again because the store was changed meanwhile
ATTEMPTS = 3

_known: WeakKeyDictionary[type, bool] = WeakKeyDictionary()


def is_recognised(cls: type) -> bool:
    """Tell whether an owned engine may search stores of a class."""
    known = _known.get(cls)
    if known is None:
        known = _known[cls] = searches_as_known(plain_class(cls), plain_method)
    return known


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
        if copy_of(self).is_due(self.store):
            search = _StoreSearch(identity, self, _unit_of(self))
            with inside(None, identity):  # its embeddings are called here
                return await _ASYNC[leaf.name](search, *args, **kwargs)
        with scoped(_is_stores_own, True):
            return await plain(*args, **kwargs)

    return coroutine if leaf.flavour == "coroutine" else sync


#: whether a search is one that a coroutine has left to its store: counted, but never awaited on
_is_stores_own: ContextVar[bool] = ContextVar("rag_accel_is_stores_own", default=False)


def _may_be_owned(store: Any) -> bool:
    # In this order: of a small store, the search may take no longer than without us.
    cls = plain_class(type(store))
    return is_large(store) and searches_unchanged(store, cls, plain_method)


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
        if filter is not None:
            return plain()
        owned = partial(self._owned, embedding, k)
        found = owned_or_plain(self.identity.accelerator, owned, plain, "retrieval")
        return plain() if found is None else found

    async def afind(self, embedding: Any, k: Any = 4, filter: Any = None, **_: Any) -> Found:
        """Do as ``find`` without blocking the loop."""

        async def plain() -> Found:
            return self.plain(embedding, k, filter)

        if filter is not None:
            return await plain()
        owned = partial(self._aowned, embedding, k)
        found = await aowned_or_plain(self.identity.accelerator, owned, plain, "retrieval")
        return await plain() if found is None else found

    def _owned(self, embedding: Any, k: Any) -> Found | None:
        copy = copy_of(self.store)
        for _ in range(ATTEMPTS):
            look = copy.look(self.store.store)
            if look is None or _is_stores_own.get():
                return None
            view = copy.current(look) or copy.update(look)
            query = search_query(view, embedding, k) if view is not None else None
            if view is None or query is None:
                return None
            hits = self.identity.accelerator.leaves.compute(self.identity, self._work(view, query))
            if view.is_current(self.store):
                return self._noted(found_by(view, embedding, k, hits, copy))
        return None

    async def _aowned(self, embedding: Any, k: Any) -> Found | None:
        # What is read of the store is read on the caller's loop and without an await in between,
        # so that no other task changes it halfway.
        accelerator, copy = self.identity.accelerator, copy_of(self.store)
        for _ in range(ATTEMPTS):
            look = copy.look(self.store.store)
            if look is None:
                return None
            view = copy.current(look)
            if view is None:  # to copy a large store takes long
                view = await accelerator.calls.start(partial(copy.update, look))
            query = search_query(view, embedding, k) if view is not None else None
            if view is None or query is None:
                return None
            hits = await accelerator.leaves.acompute(self.identity, self._work(view, query))
            if view.is_current(self.store):
                return self._noted(found_by(view, embedding, k, hits, copy))
        return None

    def _work(self, view: StoreView, query: SearchQuery) -> Work:
        # Never shared: an equal search that began before a change must not answer a later one.
        copied = view.copied
        engine = self.identity.accelerator.own(
            copied.index, "retrieval", partial(_engine, copied), holder=copied
        )
        return Work(engine, PrimitiveKind.SEARCHING, query)

    def _noted(self, found: Found | None) -> Found | None:
        if found is not None and meters and not is_nested(self.store):
            note_leaf(self.store, (), "queued")
        return found


def _engine(copied: CopiedVectors) -> Engine:
    return copied.index.as_engine()


# What the coroutines of an ``InMemoryVectorStore`` do, without its search on the loop -----------


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
