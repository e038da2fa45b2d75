"""Searches of LlamaIndex's own in-memory property graph by an index of its triplets.

What is around nodes is looked up on an engine where one of LlamaIndex's retrievers asks, so that
the hops of several requests are one step; any other search is made where its caller is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

from llama_index.core.graph_stores import SimplePropertyGraphStore
from llama_index.core.indices.property_graph.sub_retrievers.base import BasePGRetriever

from llama_index_rag_accel.concurrency.layers import layers_of
from rag_accel.accelerator import RequestIdentity
from rag_accel.adoption.shared_hops import SharedHops
from rag_accel.interception.fallback import awith_fallback, fail_open, with_fallback
from rag_accel.interception.identity import scoped
from rag_accel.interception.leaf_call import held, is_nested
from rag_accel.interception.leaf_table import LeafMethod
from rag_accel.interception.wrappers import borrowed
from rag_accel.system.loops import runs_in_loop
from rag_accel.system.methods import plain_class, plain_method
from rag_accel.system.weak_maps import ByClass
from rag_accel_adapters.llama_index.graph_stores import (
    ITS_OWN,
    RelMap,
    SharedSearches,
    answers,
    index_obstacle,
    obstacle_of_size,
    obstacle_to_sharing,
    searches_as_known,
    searches_unchanged,
    shared,
)

Method = Callable[..., Any]
Spread = Callable[[Method], Method]

_WHERE = "graph index"

#: whether a search is part of another that was left to its store
_is_stores_own: ContextVar[bool] = ContextVar("rag_accel_is_graphs_own", default=False)

#: tells whether stores of a class may be searched by an index
is_indexed = ByClass(lambda cls: searches_as_known(plain_class(cls)))


def indexed(original: Method, leaf: LeafMethod, plain: Method, spread: Spread) -> Method:
    """Return the scheduled version of a graph store's search that uses an index where there is one.

    A call is admitted as any other; what it does takes less time.

    Args:
        original: the store's method.
        leaf: its row.
        plain: the scheduled version for other stores.
        spread: returns a method as it is to run where the store itself is to answer.
    """

    name = leaf.name.removeprefix("a")

    def sync(identity: RequestIdentity, self: Any, *args: Any, **kwargs: Any) -> Any:
        hops = None if runs_in_loop() else _sharing(identity, self, name)
        if hops is None:
            return alone(identity, self, *args, **kwargs)
        with hops.joined():
            its_own = partial(original, self, *args, **kwargs)
            together = partial(hops.find, *args, **kwargs)
            found = with_fallback(identity.accelerator, together, its_own, _WHERE)
            return alone(identity, self, *args, **kwargs) if found is ITS_OWN else found

    async def coroutine(identity: RequestIdentity, self: Any, *args: Any, **kwargs: Any) -> Any:
        hops = _sharing(identity, self, name)
        if hops is None:
            return await aalone(identity, self, *args, **kwargs)
        with hops.joined():
            its_own = partial(spread(original), self, *args, **kwargs)
            together = partial(hops.afind, *args, **kwargs)
            found = await awith_fallback(identity.accelerator, together, its_own, _WHERE)
            return await aalone(identity, self, *args, **kwargs) if found is ITS_OWN else found

    def alone(identity: RequestIdentity, self: Any, *args: Any, **kwargs: Any) -> Any:
        search = _search(identity, self, name)
        if search is None:
            method = original if is_nested(self) else partial(plain, identity)
            with scoped(_is_stores_own, True):
                return method(self, *args, **kwargs)

        def call(store: Any, *args: Any, **kwargs: Any) -> Any:
            its_own = partial(original, store, *args, **kwargs)
            found = with_fallback(
                identity.accelerator, partial(search, *args, **kwargs), its_own, _WHERE
            )
            return its_own() if found is ITS_OWN else found

        method = call if is_nested(self) else partial(borrowed(call, leaf), identity)
        return method(self, *args, **kwargs)

    async def aalone(identity: RequestIdentity, self: Any, *args: Any, **kwargs: Any) -> Any:
        search = _search(identity, self, name)
        if search is None:
            method = spread(original) if is_nested(self) else partial(plain, identity)
            with scoped(_is_stores_own, True):
                return await method(self, *args, **kwargs)

        async def owned(*args: Any, **kwargs: Any) -> Any:
            return search(*args, **kwargs)

        async def call(store: Any, *args: Any, **kwargs: Any) -> Any:
            its_own = partial(spread(original), store, *args, **kwargs)
            found = await awith_fallback(
                identity.accelerator, partial(owned, *args, **kwargs), its_own, _WHERE
            )
            return await its_own() if found is ITS_OWN else found

        method = call if is_nested(self) else partial(borrowed(call, leaf), identity)
        return await method(self, *args, **kwargs)

    return coroutine if leaf.flavour == "coroutine" else sync


@dataclass(frozen=True, slots=True)
class _SharedRelMap:
    """A ``get_rel_map`` whose hops share steps with those of other callers, if there are any.

    Args:
        searches: of the store.
        hops: of the run.
    """

    searches: SharedSearches
    hops: SharedHops

    def joined(self) -> AbstractContextManager[None]:
        """Return a scope in which other callers share steps with this one."""
        return self.searches.graph.joined()

    def find(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the store finds; ``ITS_OWN`` where that is to be found without a step."""
        search = self._begun(args, kwargs)
        if search is None:
            return ITS_OWN
        view = self.searches.checked
        while len(search.frontier):
            if not self.searches.take(search, self.hops.around(view, search.frontier)):
                return ITS_OWN
            view = self.searches.unchecked
        return search.found

    async def afind(self, *args: Any, **kwargs: Any) -> Any:
        """Do as ``find`` without blocking the loop."""
        await asyncio.sleep(0)  # other tasks that are about to search join meanwhile
        search = self._begun(args, kwargs)
        if search is None:
            return ITS_OWN
        view = self.searches.checked
        while len(search.frontier):
            if not self.searches.take(search, await self.hops.aaround(view, search.frontier)):
                return ITS_OWN
            view = self.searches.unchecked
        return search.found

    def _begun(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RelMap | None:
        if not self.searches.graph.has_several_callers():
            return None
        search = self.searches.begin(*args, **kwargs)
        # Without a hop nobody would see that the store has changed.
        return search if search is not None and len(search.frontier) else None


def why_not_shared(retriever: BasePGRetriever) -> str | None:
    """Return why the hops of a retriever over a property graph share no steps with others.

    None where they do, once its store was met unchanged.
    """
    store = retriever._graph_store
    reason = obstacle_to_sharing(retriever, _below_spans)
    return reason if reason is not None else obstacle_of_size(store)  # type: ignore[arg-type]


def why_not_indexed(store: Any) -> str | None:
    """Return why no index answers a graph store; empty where one does, None for another object."""
    if not isinstance(store, SimplePropertyGraphStore):
        return None
    cls = plain_class(type(store))
    if not is_indexed(cls):
        return "the searches of its class are not those that are known"
    if not searches_unchanged(store):
        return "what it searches with was replaced"
    return index_obstacle(store) or ""


def _below_spans(cls: type, name: str) -> Any:
    """Return a class's method as its program wrote it, without the span of LlamaIndex around it."""
    method = plain_method(cls, name)
    layers = layers_of(method)
    return method if layers is None else layers.function


def _sharing(identity: RequestIdentity, store: Any, name: str) -> _SharedRelMap | None:
    """Return the shared form of a search that a known retriever makes; None for any other."""
    if name != "get_rel_map" or _is_stores_own.get():
        return None
    try:
        retriever = _asking(store)
        if retriever is None or why_not_shared(retriever) is not None:
            return None
        searches = shared(store)
    except Exception as error:
        fail_open(identity.accelerator, error, _WHERE)
        return None
    if searches is None:
        return None
    return _SharedRelMap(searches, SharedHops(identity, searches.graph, searches.holder))


def _asking(store: Any) -> BasePGRetriever | None:
    """Return the retriever over a graph store whose call this is part of."""
    for call in reversed(held.get()):
        if call.is_active and isinstance(call.obj, BasePGRetriever):
            return call.obj if call.obj._graph_store is store else None
    return None


def _search(identity: RequestIdentity, store: Any, name: str) -> Method | None:
    """Return a search by the index of a store; None where the store is to be asked."""
    cls = type(store)
    if _is_stores_own.get() or not is_indexed(cls) or not searches_unchanged(store):
        return None
    try:
        return answers(store, name)
    except Exception as error:
        fail_open(identity.accelerator, error, _WHERE)
        return None
