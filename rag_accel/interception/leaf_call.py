"""One call of a borrowed leaf: its admission, and the calls that are part of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from rag_accel.accelerator import Accelerator, RequestIdentity, current_request
from rag_accel.config import is_enabled
from rag_accel.interception.fallback import fail_open
from rag_accel.interception.identity import scoped
from rag_accel.interception.leaf_table import LeafClass, LeafMethod
from rag_accel.leaves.leaves import BegunCall, Permit
from rag_accel.profile.request_spans import result_attributes
from rag_accel.telemetry.spans import RequestSpans

#: How a call passed the scheduler: an owned engine has its work, or it is the program's own and
#: waited for its turn, or began at once and was reported.
Way: TypeAlias = Literal["owned", "queued", "admitted"]

_OF_NO_RUN = "outside of an accelerated program and of activate()"
_OFF = "RAG_ACCEL is off"
_FAILED = "an error of ours: accelerator.bypassed counts it"


@dataclass(frozen=True, slots=True)
class NotedCall:
    """A leaf call as meters record it.

    Args:
        obj: whose method was called.
        args: what it was given, where that is known.
        way: how it passed the scheduler; None if it did not.
        method: the method's name.
        reason: why it did not pass; of an admitted call, why no engine ran it.
        was_admitted: whether it was noted before, as admitted or queued: its object then brought
            its work to an owned engine.
        accelerator: admitted it; None where none did.
        count: 1; -1 of a call that is no leaf after all, as one that it makes was scheduled.
    """

    obj: Any
    args: Sequence[Any]
    way: Way | None
    method: str
    reason: str = ""
    was_admitted: bool = False
    accelerator: Accelerator | None = None
    count: int = 1

    @property
    def is_borrowed(self) -> bool:
        """Tell whether it was admitted and runs where its caller is, as far as is known."""
        return self.way in ("admitted", "queued")


#: Told of every leaf call while somebody meters them.
meters: list[Callable[[NotedCall], None]] = []

#: What the context's leaf calls itself is part of the same leaf.
held: ContextVar[tuple[LeafCall, ...]] = ContextVar("rag_accel_held", default=())


def note_leaf(
    obj: Any,
    args: Sequence[Any],
    way: Way | None,
    method: str,
    reason: str = "",
    accelerator: Accelerator | None = None,
) -> None:
    """Tell the meters of a leaf call, and how it passed the scheduler if it did."""
    if not meters:
        return
    if way is None and not reason:
        reason = _of_no_run()
    elif way is not None:
        for plain in _plain.get():
            if isinstance(obj, plain.inner) and plain.is_leaf:
                plain.is_leaf = False
                _tell(NotedCall(plain.obj, (), None, plain.method, _of_no_run(), count=-1))
    _tell(NotedCall(obj, args, way, method, reason, accelerator=accelerator))


def _of_no_run() -> str:
    return _OF_NO_RUN if is_enabled() else _OFF


@dataclass(slots=True)
class _PlainCall:
    """A metered leaf call without the scheduler; none where a part of it was scheduled."""

    obj: Any
    method: str
    inner: tuple[type, ...]
    is_leaf: bool = True


#: The leaves around a metered call that run without the scheduler.
_plain: ContextVar[tuple[_PlainCall, ...]] = ContextVar("rag_accel_plain", default=())


def unscheduled(obj: Any, method: str, inner: tuple[type, ...]) -> AbstractContextManager[None]:
    """Return a metered block that is a leaf's work without the scheduler, with its own calls."""
    return scoped(_plain, (*_plain.get(), _PlainCall(obj, method, inner)))


def is_part_of_unscheduled(obj: Any = None) -> bool:
    """Tell whether a metered call is part of a leaf that runs without the scheduler.

    Of any object if none is given.
    """
    around = _plain.get()
    return any(obj is None or obj is one.obj or isinstance(obj, one.inner) for one in around)


def note_work_on_engine(obj: Any, args: Sequence[Any], method: str) -> None:
    """Tell the meters that an admitted call of an object has its work on an owned engine."""
    _tell(NotedCall(obj, args, "owned", method, was_admitted=True))


def _tell(noted: NotedCall) -> None:
    for tell in list(meters):
        tell(noted)


def is_nested(obj: Any) -> bool:
    """Tell whether a call of ``obj`` is part of a leaf that already holds a permit.

    That is its own leaf, or that of a retriever over a store, or of a model over another.
    """
    return _call_around(obj) is not None


def _call_around(obj: Any) -> LeafCall | None:
    for call in held.get():
        # Contexts that were copied may outlive a call.
        if call.is_active and (obj is call.obj or isinstance(obj, call.inner)):
            return call
    return None


def note_engine_work(obj: Any, method: str) -> None:
    """Tell the meters that an engine did the work of an object, or of the call that it is part of.

    A call that asks several times counts once.
    """
    if not meters:
        return
    call = _call_around(obj)
    if call is None:
        note_leaf(obj, (), "owned", method)
    elif not call.is_on_engine:
        call.is_on_engine = True
        note_work_on_engine(call.obj, (), call.method)


def is_inside_leaf() -> bool:
    """Tell whether the code that runs here is part of a leaf that holds a permit."""
    return any(call.is_active for call in held.get())


class LeafCall:
    """One call of a borrowed leaf, admitted by ``begin`` or ``wait`` and over with ``end``.

    A context manager around the call itself, once it is admitted. After an internal error
    it runs without the scheduler's knowledge.
    """

    __slots__ = (
        "_args",
        "_before",
        "_begun",
        "_engine",
        "_held",
        "_identity",
        "_is_stream",
        "_kind",
        "_permit",
        "_run",
        "inner",
        "is_active",
        "is_on_engine",
        "is_settled",
        "method",
        "obj",
    )

    def __init__(
        self,
        identity: RequestIdentity,
        obj: Any,
        leaf: LeafMethod,
        known: LeafClass,
        args: Sequence[Any],
    ) -> None:
        self._identity = identity
        self.obj = obj
        self._kind = leaf.kind
        self.method = leaf.name
        self._engine = known.engine
        self.inner = known.framework.inner.get(leaf.kind, ())
        self._args = args
        self._begun: BegunCall | None = None
        self._permit: Permit | None = None
        self._before = current_request.get()
        self.is_active = True
        #: whether the meters were told that an engine does its work
        self.is_on_engine = False
        self._is_stream = False
        #: whether it is over, and the context is as it was
        self.is_settled = False

    def begin(self) -> bool:
        """Begin, if nothing has to be waited for; ``end`` must follow then."""
        identity = self._identity
        accelerator = identity.accelerator
        try:
            begun = accelerator.leaves.begin(identity, self._engine, self._kind, self.obj)
            if begun is not None:
                self._begun = begun
                begun.start()
            elif not self._begin_known():
                return False
        except Exception as error:
            self._refused(error)
            return True
        if meters:
            self._note("admitted")
        return True

    def _begin_known(self) -> bool:
        """Begin a call that is perhaps the first of its class, or that has to wait."""
        accelerator = self._identity.accelerator
        engine = accelerator.borrow(self._engine, self._kind)
        self._permit = accelerator.leaves.permit(self._identity, engine, self._kind, self.obj)
        return self._permit.begin()

    def wait(self) -> None:
        """Wait in this thread until the scheduler lets it begin; ``end`` must follow."""
        assert self._permit is not None, "only a call that did not begin at once waits"
        try:
            self._permit.wait()
        except Exception as error:
            self._refused(error)
        else:
            if meters:
                self._note("queued")

    async def wait_on_loop(self) -> None:
        """Do as ``wait`` without blocking the loop."""
        assert self._permit is not None, "only a call that did not begin at once waits"
        try:
            await self._permit.wait_on_loop()
        except Exception as error:
            self._refused(error)
        else:
            if meters:
                self._note("queued")

    def _note(self, way: Way) -> None:
        accelerator = self._identity.accelerator
        note_leaf(self.obj, self._args, way, self.method, accelerator=accelerator)

    def begin_stream(self) -> None:
        """Note that it goes on after its caller has returned, and its run with it."""
        self._is_stream = True
        self._identity.begin_stream()

    def note_result(self, spans: RequestSpans, value: object) -> None:
        """Note for spans what the call returns."""
        made = self._begun or self._permit
        if made is not None:
            spans.results[made.name] = result_attributes(self._kind, None, value)

    def end(self, ok: bool) -> None:
        """Note that it has returned, or raised."""
        self.is_active = False
        self.obj, self._args = None, ()  # contexts that were copied meanwhile may live on
        # Only then forgotten: to say it twice, after an interrupt, does no harm.
        if self._begun is not None:
            self._begun.end(ok)
            self._begun = None
        if self._permit is not None:
            self._permit.give_back(ok)
            self._permit = None
        if self._is_stream:
            self._is_stream = False
            self._identity.end_stream()

    def leave(self) -> None:
        """Do what an interrupt may have kept from being done: end, and leave the context."""
        self.is_active = False
        if self._begun is not None or self._permit is not None:
            self.end(ok=False)
        if self._before is not self._identity and current_request.get() is self._identity:
            current_request.set(self._before)

    def __enter__(self) -> None:
        self._held = held.set((*held.get(), self))
        self._run = current_request.set(self._identity)

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.end(kind is None)
        try:
            current_request.reset(self._run)
            held.reset(self._held)
        except ValueError:
            # A coroutine that nobody ends is closed by the garbage collector, in whatever context
            # that happens to run; the context in which these were set is gone with its task.
            return
        self.is_settled = True

    def inside(self) -> inside:
        """Return a scope in which code runs as part of this call and of its run."""
        return inside(self, self._identity)

    def _refused(self, error: Exception) -> None:
        self._permit = None
        fail_open(self._identity.accelerator, error, self._engine)
        note_leaf(self.obj, self._args, None, self.method, _FAILED)


class inside:  # noqa: N801 - used as a function
    """A block whose calls count as part of a leaf's call, if one is given, and of a run."""

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
        except ValueError:  # closed by the garbage collector, as a leaf's call may be
            return
