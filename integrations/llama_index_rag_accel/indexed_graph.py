"""Searches of LlamaIndex's own in-memory property graph by an index of its triplets."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from rag_accel.accelerator import RequestIdentity
from rag_accel.adoption.owned_or_plain import aowned_or_plain, fail_open, owned_or_plain
from rag_accel.interception.identity import scoped
from rag_accel.interception.leaf_call import is_nested
from rag_accel.interception.leaf_table import LeafMethod, plain_class, plain_method
from rag_accel.interception.wrappers import borrowed
from rag_accel_adapters.llama_index.graph_stores import (
    ITS_OWN,
    answers,
    searches_as_known,
    searches_unchanged,
)

Method = Callable[..., Any]
Spread = Callable[[Method], Method]

_WHERE = "graph index"

#: whether a search is part of one that was left to its store
_is_stores_own: ContextVar[bool] = ContextVar("rag_accel_is_graphs_own", default=False)

_known: WeakKeyDictionary[type, bool] = WeakKeyDictionary()


def is_indexed(cls: type) -> bool:
    """Tell whether stores of a class may be searched by an index."""
    known = _known.get(cls)
    if known is None:
        known = _known[cls] = searches_as_known(plain_class(cls), plain_method)
    return known


def indexed(original: Method, leaf: LeafMethod, plain: Method, spread: Spread) -> Method:
    """Return the scheduled version of a graph store's search that uses an index where there is one.

    A call is admitted as any other; what it does takes less time.

    Args:
        original: the store's method.
        leaf: its row.
        plain: the scheduled version for other stores.
        spread: returns a method as it is to run where the store itself is to answer.
    """

    def sync(identity: RequestIdentity, self: Any, *args: Any, **kwargs: Any) -> Any:
        search = _search(identity, self, leaf.name)
        if search is None:
            method = original if is_nested(self) else partial(plain, identity)
            with scoped(_is_stores_own, True):
                return method(self, *args, **kwargs)

        def call(store: Any, *args: Any, **kwargs: Any) -> Any:
            its_own = partial(original, store, *args, **kwargs)
            found = owned_or_plain(
                identity.accelerator, partial(search, *args, **kwargs), its_own, _WHERE
            )
            return its_own() if found is ITS_OWN else found

        method = call if is_nested(self) else partial(borrowed(call, leaf), identity)
        return method(self, *args, **kwargs)

    async def coroutine(identity: RequestIdentity, self: Any, *args: Any, **kwargs: Any) -> Any:
        search = _search(identity, self, leaf.name.removeprefix("a"))
        if search is None:
            method = spread(original) if is_nested(self) else partial(plain, identity)
            with scoped(_is_stores_own, True):
                return await method(self, *args, **kwargs)

        async def owned(*args: Any, **kwargs: Any) -> Any:
            return search(*args, **kwargs)

        async def call(store: Any, *args: Any, **kwargs: Any) -> Any:
            its_own = partial(spread(original), store, *args, **kwargs)
            found = await aowned_or_plain(
                identity.accelerator, partial(owned, *args, **kwargs), its_own, _WHERE
            )
            return await its_own() if found is ITS_OWN else found

        method = call if is_nested(self) else partial(borrowed(call, leaf), identity)
        return await method(self, *args, **kwargs)

    return coroutine if leaf.flavour == "coroutine" else sync


def _search(identity: RequestIdentity, store: Any, name: str) -> Method | None:
    """Return a search by the index of a store; None where the store is to be asked."""
    cls = type(store)
    if (
        _is_stores_own.get()
        or not is_indexed(cls)
        or not searches_unchanged(store, plain_class(cls), plain_method)
    ):
        return None
    try:
        return answers(store, name)
    except Exception as error:
        fail_open(identity.accelerator, error, _WHERE)
        return None
