"""Searches of recognised vector stores on an owned engine, batched across requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

from rag_accel.accelerator import RequestIdentity, Work
from rag_accel.adoption.store_copies import (
    CopiedVectors,
    Look,
    StoreKind,
    StoreView,
    copy_of,
    found_by,
    search_query,
)
from rag_accel.engine_api import Engine, PrimitiveKind, SearchQuery
from rag_accel.interception.fallback import awith_fallback, with_fallback
from rag_accel.interception.identity import scoped
from rag_accel.interception.leaf_call import note_engine_work

#: how often a search is begun again because the store was changed meanwhile
ATTEMPTS = 3

#: whether a search is one that a coroutine has left to its store: counted, but never awaited on
_is_stores_own: ContextVar[bool] = ContextVar("rag_accel_is_stores_own", default=False)


def left_to_its_store() -> AbstractContextManager[None]:
    """Return a scope in which a coroutine lets a store search by itself, on the caller's loop."""
    return scoped(_is_stores_own, True)


def is_due(kind: StoreKind, store: Any) -> bool:
    """Tell whether a large store has been searched often enough for an engine, unchanged."""
    return copy_of(kind, store).is_due(kind.entries(store))


@dataclass(frozen=True, slots=True)
class CopiedSearch:
    """Searches of one store for one run, led by the copy of its vectors.

    Args:
        identity: the run.
        kind: how the store is read.
        store: the store.
        is_for_all: tells whether what is asked concerns all that the store holds.
    """

    identity: RequestIdentity
    kind: StoreKind
    store: Any
    is_for_all: Callable[[Look], bool] = lambda look: True

    def find(self, vector: Any, k: Any, plain: Callable[[], Any]) -> Any:
        """Return what the store finds, ``k`` at most; ``plain()`` where it is itself to say."""
        owned = partial(self._owned, vector, k)
        found = with_fallback(self.identity.accelerator, owned, plain, "retrieval")
        return plain() if found is None else found

    async def afind(self, vector: Any, k: Any, plain: Callable[[], Awaitable[Any]]) -> Any:
        """Do as ``find`` without blocking the loop."""
        owned = partial(self._aowned, vector, k)
        found = await awith_fallback(self.identity.accelerator, owned, plain, "retrieval")
        return await plain() if found is None else found

    def _owned(self, vector: Any, k: Any) -> Any:
        copy = copy_of(self.kind, self.store)
        for _ in range(ATTEMPTS):
            look = copy.look(self.kind.entries(self.store))
            if look is None or _is_stores_own.get() or not self.is_for_all(look):
                return None
            view = copy.current(look) or copy.update(look)
            query = search_query(view, vector, k) if view is not None else None
            if view is None or query is None:
                return None
            hits = self.identity.accelerator.leaves.compute(self.identity, self._work(view, query))
            if view.is_current(self.store):
                return self._noted(found_by(view, vector, k, hits, copy))
        return None

    async def _aowned(self, vector: Any, k: Any) -> Any:
        # What is read of the store is read on the caller's loop and without an await in between,
        # so that no other task changes it halfway.
        accelerator, copy = self.identity.accelerator, copy_of(self.kind, self.store)
        for _ in range(ATTEMPTS):
            look = copy.look(self.kind.entries(self.store))
            if look is None or not self.is_for_all(look):
                return None
            view = copy.current(look)
            if view is None:  # to copy a large store takes long
                view = await accelerator.calls.start(partial(copy.update, look))
            query = search_query(view, vector, k) if view is not None else None
            if view is None or query is None:
                return None
            hits = await accelerator.leaves.acompute(self.identity, self._work(view, query))
            if view.is_current(self.store):
                return self._noted(found_by(view, vector, k, hits, copy))
        return None

    def _work(self, view: StoreView, query: SearchQuery) -> Work:
        # Never shared: an equal search that began before a change must not answer a later one.
        copied = view.copied
        engine = self.identity.accelerator.own(
            copied.index, "retrieval", partial(_engine, copied), holder=copied
        )
        return Work(engine, PrimitiveKind.SEARCHING, query)

    def _noted(self, found: Any) -> Any:
        if found is not None:
            note_engine_work(self.store, "search")
        return found


def _engine(copied: CopiedVectors) -> Engine:
    return copied.index.as_engine()
