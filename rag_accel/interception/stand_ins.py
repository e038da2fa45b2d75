"""Recognised objects' own methods on stand-ins, whose clients bring work to owned engines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rag_accel.accelerator import RequestIdentity, Work
from rag_accel.adoption import local_llms
from rag_accel.adoption.by_identity import ByClass
from rag_accel.adoption.generation import GreedyCall
from rag_accel.adoption.owned_or_plain import owned_or_plain, start_in_pool
from rag_accel.adoption.stand_ins import ClientWork, KnownClass, StandIns
from rag_accel.interception.leaf_call import is_nested, meters, note_work_on_engine
from rag_accel.interception.leaf_table import (
    LeafMethod,
    is_default,
    plain_class,
    plain_method,
)

Method = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class StandingIn:
    """The methods of a framework's objects that can run on stand-ins."""

    stand_ins: StandIns
    #: returns what is known of a class; None if its objects have no stand-ins
    known: ByClass[KnownClass | None] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        find = self.stand_ins.find
        looked = ByClass(lambda cls: find(plain_class(cls), plain_method))
        object.__setattr__(self, "known", looked)

    def may_stand_in(self, cls: type) -> bool:
        """Tell whether objects of a class may have stand-ins."""
        return self.known(cls) is not None

    def owned(self, original: Method, leaf: LeafMethod, borrowed: Method) -> Method:
        """Return the scheduled version of a method that runs on a stand-in where there is one.

        ``borrowed`` is how it is admitted, with a stand-in or without.
        """

        def sync(identity: RequestIdentity, obj: Any, *args: Any, **kwargs: Any) -> Any:
            known = self.known(type(obj))
            if known is None:
                return borrowed(identity, obj, *args, **kwargs)
            method = _method(original, borrowed, identity, obj)
            return method(_stand_in(known, identity, obj, False), *args, **kwargs)

        async def coroutine(identity: RequestIdentity, obj: Any, *args: Any, **kwargs: Any) -> Any:
            # Of a default, the sync method runs on a stand-in.
            known = self.known(type(obj))
            if known is None or is_default(type(obj), leaf):
                return await borrowed(identity, obj, *args, **kwargs)
            method = _method(original, borrowed, identity, obj)
            return await method(_stand_in(known, identity, obj, True), *args, **kwargs)

        return coroutine if leaf.flavour == "coroutine" else sync


def _stand_in(known: KnownClass, identity: RequestIdentity, obj: Any, is_on_loop: bool) -> Any:
    """Return what replaces an object for one call: itself where a stand-in is of no use."""
    return known.make(obj, _Asking(identity, obj, is_on_loop)) if known.fits(obj) else obj


def _method(original: Method, borrowed: Method, identity: RequestIdentity, obj: Any) -> Method:
    # Part of a leaf, such as a retriever's, that was admitted: only its work is to be gathered.
    return original if is_nested(obj) else partial(borrowed, identity)


class _Asking:
    """A function that brings the work of one object's stand-in to the scheduler, for one run."""

    __slots__ = ("_holder", "_identity", "is_on_loop")

    def __init__(self, identity: RequestIdentity, holder: Any, is_on_loop: bool) -> None:
        self._identity = identity
        self._holder = holder
        self.is_on_loop = is_on_loop

    def __call__(
        self, work: ClientWork, plain: Callable[[], Any], read: Callable[[Any], Any]
    ) -> Any:
        accelerator = self._identity.accelerator

        def owned() -> Any:
            engine = accelerator.own(work.client, work.name, work.make, holder=self._holder)
            leaf = Work(engine, work.kind, work.payload, work.size)
            found = read(accelerator.leaves.compute(self._identity, leaf))
            if meters:
                note_work_on_engine(self._holder)
            return found

        return owned_or_plain(accelerator, owned, plain, work.name)

    def adopts(self, model: Any) -> bool:
        return local_llms.why_plain(model, self._identity.accelerator.options.adopt_llm) is None

    def generate(self, model: Any, call: GreedyCall) -> Any:
        if meters and self.adopts(model):
            note_work_on_engine(self._holder)
        return local_llms.generate(self._identity, model, self._holder, call)

    async def in_pool(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        running = start_in_pool(
            self._identity.accelerator, partial(call, *args, **kwargs), "retrieval"
        )
        return await (asyncio.to_thread(call, *args, **kwargs) if running is None else running)
