"""Recognised objects' own methods on stand-ins, whose clients bring work to owned engines."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from langchain_core.runnables import run_in_executor

from rag_accel.accelerator import RequestIdentity, Work
from rag_accel.interception.identity import owned_or_plain, start_in_pool
from rag_accel.interception.leaf_call import is_nested
from rag_accel.interception.leaf_table import (
    LeafMethod,
    is_default,
    plain_class,
    plain_method,
)
from rag_accel_adapters.langchain.stand_ins import ClientWork, has_stand_ins, stand_in_for

Method = Callable[..., Any]

_known: WeakKeyDictionary[type, bool] = WeakKeyDictionary()


def may_stand_in(cls: type) -> bool:
    """Tell whether objects of a class may have stand-ins."""
    known = _known.get(cls)
    if known is None:
        known = _known[cls] = has_stand_ins(plain_class(cls), plain_method)
    return known


def standing_in(original: Method, leaf: LeafMethod, borrowed: Method) -> Method:
    """Return the scheduled version of a method that runs on a stand-in where there is one.

    ``borrowed`` is how it is admitted, with a stand-in or without.
    """

    def sync(identity: RequestIdentity, self: Any, *args: Any, **kwargs: Any) -> Any:
        if not may_stand_in(type(self)):
            return borrowed(identity, self, *args, **kwargs)
        method = _method(original, borrowed, identity, self)
        return method(_stand_in(identity, self), *args, **kwargs)

    async def coroutine(identity: RequestIdentity, self: Any, *args: Any, **kwargs: Any) -> Any:
        if not may_stand_in(type(self)) or is_default(type(self), leaf):  # then the sync one does
            return await borrowed(identity, self, *args, **kwargs)
        method = _method(original, borrowed, identity, self)
        return await method(_stand_in(identity, self), *args, **kwargs)

    return coroutine if leaf.flavour == "coroutine" else sync


def _method(original: Method, borrowed: Method, identity: RequestIdentity, obj: Any) -> Method:
    # Part of a leaf, such as a retriever's, that was admitted: only its work is to be gathered.
    return original if is_nested(obj) else partial(borrowed, identity)


def _stand_in(identity: RequestIdentity, obj: Any) -> Any:
    asking = _Asking(identity, obj)
    found = stand_in_for(obj, plain_class(type(obj)), plain_method, asking)
    return obj if found is None else found


class _Asking:
    """A function that brings the work of one object's stand-in to the scheduler, for one run."""

    __slots__ = ("_holder", "_identity")

    def __init__(self, identity: RequestIdentity, holder: Any) -> None:
        self._identity = identity
        self._holder = holder

    def __call__(
        self, work: ClientWork, plain: Callable[[], Any], read: Callable[[Any], Any]
    ) -> Any:
        accelerator = self._identity.accelerator

        def owned() -> Any:
            engine = accelerator.own(work.client, work.name, work.make, holder=self._holder)
            leaf = Work(engine, work.kind, work.payload, work.size)
            return read(accelerator.leaves.compute(self._identity, leaf))

        return owned_or_plain(accelerator, owned, plain, work.name)

    async def in_pool(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        running = start_in_pool(
            self._identity.accelerator, partial(call, *args, **kwargs), "retrieval"
        )
        if running is None:
            return await run_in_executor(None, partial(call, *args, **kwargs))
        return await running
