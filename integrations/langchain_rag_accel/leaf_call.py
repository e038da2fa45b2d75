"""Let one call of a borrowed leaf be admitted, and what it calls itself be part of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar, Token
from typing import Any

from langchain_core.language_models import BaseLanguageModel
from langchain_core.vectorstores import VectorStore

from langchain_rag_accel.context import fail_open
from langchain_rag_accel.coverage import Way, note_leaf
from langchain_rag_accel.leaf_methods import DECODING, SEARCHING, LeafMethod, engine_name
from rag_accel.accelerator import RequestIdentity, current_request
from rag_accel.accelerator.leaves import Permit

#: What the context's leaf calls itself is part of the same leaf.
held: ContextVar[tuple[LeafCall, ...]] = ContextVar("rag_accel_held", default=())


def is_nested(obj: Any) -> bool:
    """Tell whether a call of ``obj`` is part of a leaf that already holds a permit.

    That is its own leaf, or that of a retriever over a store, or of a model over another.
    """
    for call in held.get():  # noqa: SIM110 - asked by every call: a generator costs more than this
        if call.covers(obj):
            return True
    return False


def is_inside_leaf() -> bool:
    """Tell whether the code that runs here is part of a leaf that holds a permit."""
    return any(call.is_active for call in held.get())


class LeafCall:
    """One call of a borrowed leaf: holds its permit from ``begin`` or ``wait`` to ``end``.

    After an internal error of ours it runs without one.
    """

    __slots__ = ("_args", "_identity", "_kind", "_obj", "_permit", "is_active")

    def __init__(
        self, identity: RequestIdentity, obj: Any, leaf: LeafMethod, args: Sequence[Any]
    ) -> None:
        self._identity = identity
        self._obj = obj
        self._kind = leaf.kind
        self._args = args
        self.is_active = True
        self._permit: Permit | None = None

    def covers(self, obj: Any) -> bool:
        """Tell whether a call of ``obj`` is part of this one; contexts copied may outlive it."""
        return self.is_active and (
            obj is self._obj
            or (self._kind is SEARCHING and isinstance(obj, VectorStore))
            or (self._kind is DECODING and isinstance(obj, BaseLanguageModel))
        )

    def begin(self) -> bool:
        """Begin, if nothing has to be waited for; ``end`` must follow then."""
        accelerator = self._identity.accelerator
        name = engine_name(type(self._obj))
        try:
            engine = accelerator.borrow(name, self._kind)
            permit = accelerator.leaves.permit(self._identity, engine, self._kind)
            begins = permit.begin()
        except Exception as error:
            fail_open(accelerator, error, name)
            self._note(None)
            return True
        self._permit = permit
        if begins:
            self._note("admitted")
        return begins

    def wait(self) -> None:
        """Wait in this thread until the scheduler lets it begin; ``end`` must follow."""
        permit = self._taken()
        try:
            permit.wait()
        except Exception as error:
            self._refused(error)
        else:
            self._permit = permit
            self._note("queued")

    async def wait_on_loop(self) -> None:
        """Do as ``wait`` without blocking the loop."""
        permit = self._taken()
        try:
            await permit.wait_on_loop()
        except Exception as error:
            self._refused(error)
        else:
            self._permit = permit
            self._note("queued")

    def end(self, ok: bool) -> None:
        """Note that it has returned, or raised."""
        self.is_active = False
        self._obj = None  # contexts that were copied meanwhile may live on
        if self._permit is not None:
            self._permit.give_back(ok)

    def _taken(self) -> Permit:
        permit, self._permit = self._permit, None
        assert permit is not None, "only a call that did not begin at once waits"
        return permit

    def _refused(self, error: Exception) -> None:
        fail_open(self._identity.accelerator, error, engine_name(type(self._obj)))
        self._note(None)

    def _note(self, way: Way | None) -> None:
        note_leaf(self._obj, self._args, way)
        self._args = ()

    def inside(self) -> inside:
        """Return a scope in which code runs as part of this call and of its run."""
        return inside(self, self._identity)


class inside:  # noqa: N801 - used as a function
    """Let what runs in the block count as part of a leaf's call, if one is given, and of a run."""

    __slots__ = ("_call", "_held", "_identity", "_run")

    def __init__(self, call: LeafCall | None, identity: RequestIdentity) -> None:
        self._call = call
        self._identity = identity
        self._held: Token[tuple[LeafCall, ...]] | None = None

    def __enter__(self) -> None:
        if self._call is not None:
            self._held = held.set((*held.get(), self._call))
        self._run = current_request.set(self._identity)

    def __exit__(self, *raised: object) -> None:
        try:
            current_request.reset(self._run)
            if self._held is not None:
                held.reset(self._held)
        except ValueError:
            # A coroutine that nobody ends is closed by the garbage collector, in whatever context
            # that happens to run; the context in which these were set is gone with its task.
            return
