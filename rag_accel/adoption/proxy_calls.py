"""Recognised objects' own methods on proxies, whose clients submit work to owned engines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any

from rag_accel.accelerator import RequestIdentity, Work
from rag_accel.adoption import local_llms, served_llms
from rag_accel.adoption.endpoint_gates import gate_for
from rag_accel.adoption.generation import GenerateCall, GenerateHooks
from rag_accel.adoption.proxies import Ask, ClientWork, ProxyClass, ProxyClasses
from rag_accel.interception.fallback import start_in_pool, with_fallback
from rag_accel.interception.leaf_call import is_nested, meters, note_work_on_engine
from rag_accel.interception.leaf_table import LeafMethod, is_default
from rag_accel.system.methods import plain_class
from rag_accel.system.weak_maps import ByClass

Method = Callable[..., Any]


class StandingIn:
    """The methods of a framework's objects that can run on proxies."""

    def __init__(self, proxies: ProxyClasses) -> None:
        #: returns what is known of a class; None if its objects have no proxies
        self.known: ByClass[ProxyClass | None] = ByClass(lambda cls: proxies.find(plain_class(cls)))

    def may_be_proxied(self, cls: type) -> bool:
        """Tell whether objects of a class may have proxies."""
        return self.known(cls) is not None

    def owned(self, original: Method, leaf: LeafMethod, borrowed: Method) -> Method:
        """Return the scheduled version of a method that runs on a proxy where there is one.

        ``borrowed`` is how it is admitted, with a proxy or without.
        """

        def sync(identity: RequestIdentity, obj: Any, *args: Any, **kwargs: Any) -> Any:
            known = self.known(type(obj))
            if known is None:
                return borrowed(identity, obj, *args, **kwargs)
            method = _method(original, borrowed, identity, obj)
            asking = _Asking(identity, obj, _notes(obj, leaf, args))
            proxy = _proxy(known, asking.ask(is_on_loop=False), obj)
            return _told(known, identity, obj, proxy, method(proxy, *args, **kwargs))

        async def coroutine(identity: RequestIdentity, obj: Any, *args: Any, **kwargs: Any) -> Any:
            # Of a default, the sync method runs on a proxy.
            known = self.known(type(obj))
            if known is None or is_default(type(obj), leaf):
                return await borrowed(identity, obj, *args, **kwargs)
            method = _method(original, borrowed, identity, obj)
            asking = _Asking(identity, obj, _notes(obj, leaf, args))
            proxy = _proxy(known, asking.ask(is_on_loop=True), obj)
            return _told(known, identity, obj, proxy, await method(proxy, *args, **kwargs))

        return coroutine if leaf.flavour == "coroutine" else sync


def _proxy(known: ProxyClass, ask: Ask, obj: Any) -> Any:
    """Return what replaces an object for one call: itself where a proxy is of no use."""
    is_of_use = known.is_of_use or (lambda obj, ask: known.why_not(obj) is None)
    return known.make(obj, ask) if is_of_use(obj, ask) else obj


def _notes(obj: Any, leaf: LeafMethod, args: Sequence[Any]) -> list[Callable[[], None]]:
    """Return what tells the meters, from any thread, that an engine has the work of a call."""
    if not meters or is_nested(obj):
        return []
    context = copy_context()
    return [lambda: context.run(note_work_on_engine, obj, args, leaf.name)]


def _told(known: ProxyClass, identity: RequestIdentity, obj: Any, proxy: Any, found: Any) -> Any:
    """Return what a method returned, with how it was computed where that is approximate."""
    if proxy is obj or known.tell is None:
        return found
    if known.model is not None:
        if not local_llms.is_approximate(identity.accelerator, known.model(obj)):
            return found
    elif not known.is_served:
        return found
    return known.tell(proxy, found)


def _method(original: Method, borrowed: Method, identity: RequestIdentity, obj: Any) -> Method:
    # Part of a leaf, such as a retriever's, that was admitted: only its work is to be gathered.
    return original if is_nested(obj) else partial(borrowed, identity)


@dataclass(slots=True, eq=False, repr=False)
class _Asking:
    """The work of one object's proxy in one run."""

    identity: RequestIdentity
    holder: Any
    notes: list[Callable[[], None]]

    def ask(self, *, is_on_loop: bool) -> Ask:
        """Return how the proxy reaches the scheduler."""
        gate = partial(gate_for, self.identity, self.holder)
        return Ask(
            is_on_loop=is_on_loop,
            compute=self._compute,
            generation=GenerateHooks(self._why_plain, self._generate),
            gate=gate,
            share=self._share,
            server=partial(served_llms.hooks_of, self.identity, gate),
            in_pool=self._in_pool,
        )

    def _compute(
        self, work: ClientWork, plain: Callable[[], Any], read: Callable[[Any], Any]
    ) -> Any:
        accelerator = self.identity.accelerator

        def owned() -> Any:
            found = read(accelerator.leaves.compute(self.identity, self._leaf(work)))
            self._note()
            return found

        return with_fallback(accelerator, owned, plain, work.name)

    def _leaf(self, work: ClientWork) -> Work:
        accelerator = self.identity.accelerator
        engine = accelerator.own(work.client, work.name, work.make, holder=self.holder)
        return Work(engine, work.kind, work.payload, work.size, obj=self.holder)

    def _why_plain(self, model: Any, is_sampled: bool) -> str | None:
        return local_llms.why_plain(self.identity.accelerator, model, is_sampled=is_sampled)

    def _generate(self, model: Any, call: GenerateCall) -> Any:
        if self.notes and self._why_plain(model, call.is_sampled) is None:
            self._note()
        return local_llms.generate(self.identity, model, self.holder, call)

    def _share(
        self, key: Hashable, call: Callable[[], Any], is_whole: Callable[[Any], bool]
    ) -> Any:
        accelerator = self.identity.accelerator
        if not accelerator.options.single_flight:
            return call()
        timeout_s = accelerator.left_s(self.identity)
        return accelerator.shared_answers.ask(key, call, is_whole, timeout_s)

    def _note(self) -> None:
        try:
            note = self.notes.pop()
        except IndexError:  # nobody meters, or it was noted
            return
        note()

    async def _in_pool(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        running = start_in_pool(
            self.identity.accelerator, partial(call, *args, **kwargs), "retrieval"
        )
        return await (asyncio.to_thread(call, *args, **kwargs) if running is None else running)
