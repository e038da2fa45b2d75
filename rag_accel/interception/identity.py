"""The run an intercepted call belongs to, and the open ``activate()`` blocks."""

from __future__ import annotations

from contextvars import ContextVar, copy_context
from typing import Any, Generic, TypeVar

from rag_accel.accelerator import Accelerator, RequestIdentity, current_request, default_accelerator
from rag_accel.config import is_enabled, is_switch_set
from rag_accel.interception.arguments import checked
from rag_accel.system.forks import forks
from rag_accel.system.locks import RenewedLock


class Activation:
    """One open ``activate()`` block; without an accelerator, of the current process default.

    Raises:
        ConfigError: ``accelerator`` is of another type.
    """

    def __init__(self, accelerator: Accelerator | None) -> None:
        self.own = checked(accelerator)
        self.outer = _here.get()
        self.is_open = False

    @property
    def accelerator(self) -> Accelerator:
        """Return the accelerator that schedules what this block covers."""
        return self.own or default_accelerator()

    def open(self) -> None:
        """Cover this context, and contexts that belong to no block."""
        with _lock.lock:
            self.is_open = True
            _open.append(self)
        _here.set(self)

    def close(self) -> None:
        """Cover nothing any more."""
        with _lock.lock:
            self.is_open = False
            _open.remove(self)
        # No token: a block may end in another context than it began in, as a server's start and
        # stop hooks do. Contexts that still name this block look past it.
        if _here.get() is self:
            _here.set(self.outer)


_lock = RenewedLock()
_open: list[Activation] = []
_here: ContextVar[Activation | None] = ContextVar("rag_accel_activation", default=None)


def activated() -> Accelerator | None:
    """Return the accelerator of the innermost open block around this context.

    A context made outside every block, such as a thread's or a server's task's, belongs to the
    block opened last. In a forked child, an explicit accelerator of the parent covers nothing.
    """
    if not _open:
        return None
    block = _here.get()
    while block is not None and not block.is_open:
        block = block.outer
    if block is None:
        block = next(iter(_open[-1:]), None)
    if block is None or (block.own is not None and block.own.forked):
        return None
    return block.accelerator


def open_blocks() -> tuple[Activation, ...]:
    """Return the blocks open now, oldest first."""
    with _lock.lock:
        return tuple(_open)


def current_run(own: Accelerator | None = None) -> RequestIdentity | None:
    """Return the run this context is part of, if any, and if it is one of ``own``'s."""
    run = current_request.get()
    if run is None or run.has_ended or (own is not None and own is not run.accelerator):
        return None
    # A forked child is no part of its parent's runs.
    return run if run.forks == forks.number else None


def find_identity(own: Accelerator | None = None) -> RequestIdentity | None:
    """Return the run an intercepted call belongs to, or ``None`` if it runs without acceleration.

    What a run has left behind goes on for itself: neither its age nor its deadline is the run's.
    Under ``activate()`` a call outside any run is a run of its own.
    """
    if is_switch_set() and not is_enabled():
        return None
    run = current_request.get()
    if run is not None and (own is None or own is run.accelerator) and run.forks == forks.number:
        return run.accelerator.anonymous() if run.has_ended else run
    accelerator = activated()
    if accelerator is None or (own is not None and accelerator is not own):
        return None
    return accelerator.anonymous()


#: Of live runs, the ids of objects that their framework calls in threads without any context.
lent: dict[RequestIdentity, frozenset[int]] = {}


def find_lender(obj: Any) -> RequestIdentity | None:
    """Return a run for a call in a thread without a context, if a live run lent its object."""
    if len(copy_context()) or not is_enabled():
        return None
    for identity, objects in list(lent.items()):
        if id(obj) in objects and not identity.accelerator.forked:
            return identity.accelerator.anonymous()
    return None


def identity_for(own: Accelerator | None) -> RequestIdentity | None:
    """Return the current run, or a fresh anonymous one for an object that is always scheduled."""
    found = find_identity(own)
    if found is None and is_enabled():
        return (own or default_accelerator()).anonymous()
    return found


T = TypeVar("T")


class scoped(Generic[T]):  # noqa: N801 - used as a function
    """A block during which a context variable has a value."""

    __slots__ = ("_token", "_value", "_var")

    def __init__(self, var: ContextVar[T], value: T) -> None:
        self._var, self._value = var, value

    def __enter__(self) -> None:
        self._token = self._var.set(self._value)

    def __exit__(self, *raised: object) -> None:
        try:
            self._var.reset(self._token)
        except ValueError:
            # A coroutine that nobody ends is closed by the garbage collector, in whatever context
            # that happens to run; the context it was set in is gone with its task.
            return
