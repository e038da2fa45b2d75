"""The run an intercepted call belongs to, which an error of ours never breaks."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from contextvars import ContextVar, copy_context
from typing import Any, Generic, TypeVar

from rag_accel.accelerator import (
    Accelerator,
    RequestIdentity,
    current_request,
    default_accelerator,
)
from rag_accel.config import is_enabled
from rag_accel.errors import (
    BusyError,
    DeadlineError,
    ForkedError,
    RequestCancelledError,
)

# Which ``activate()`` blocks are open, wherever in the process a call comes from.


class Activation:
    """One open block; ``accelerator=None`` stands for the process default of the moment."""

    def __init__(self, accelerator: Accelerator | None) -> None:
        self.own = accelerator
        self.outer = _here.get()
        self.is_open = False

    @property
    def accelerator(self) -> Accelerator:
        """Return the accelerator that schedules what this block covers."""
        return self.own or default_accelerator()

    def open(self) -> None:
        """Cover this context, and whatever context belongs to no block of its own."""
        with _lock:
            self.is_open = True
            _open.append(self)
        _here.set(self)

    def close(self) -> None:
        """Cover nothing any more."""
        with _lock:
            self.is_open = False
            _open.remove(self)
        # No token: a block may end in another context than it began in, as a server's start and
        # stop hooks do. Contexts that still name this block look past it.
        if _here.get() is self:
            _here.set(self.outer)


_lock = threading.Lock()


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)  # who held it there before is gone
_open: list[Activation] = []
_here: ContextVar[Activation | None] = ContextVar("rag_accel_activation", default=None)


def activated() -> Accelerator | None:
    """Return the accelerator of the innermost open block around this context.

    A context made beside every block, such as a thread's or a server's task's, belongs to the
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
    with _lock:
        return tuple(_open)


logger = logging.getLogger("rag_accel.interception")

T = TypeVar("T")

#: seconds in which the same kind of failure is logged once
WARN_EVERY_S = 60
_warned: weakref.WeakKeyDictionary[Accelerator, dict[str, float]] = weakref.WeakKeyDictionary()

#: Errors that are the caller's own limits or doing. Whatever else happens to a leaf before the
#: program's code runs is our failure, and must not become the program's.
MEANT = (BusyError, DeadlineError, ForkedError, RequestCancelledError)


def current_run(own: Accelerator | None = None) -> RequestIdentity | None:
    """Return the run this context is part of, if any, and if it is one of ``own``'s."""
    run = current_request.get()
    if run is None or run.has_ended or (own is not None and own is not run.accelerator):
        return None
    # A forked child is no part of its parent's runs.
    return None if run.accelerator.forked else run


def find_identity(own: Accelerator | None = None) -> RequestIdentity | None:
    """Return the run an intercepted call belongs to, or ``None`` if it is to run plainly.

    What a run has left behind goes on for itself: neither its age nor its deadline is the run's.
    Under ``activate()`` a call outside any run is a run of its own.
    """
    if not is_enabled():
        return None
    run = current_request.get()
    if run is not None and (own is None or own is run.accelerator) and not run.accelerator.forked:
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


def fail_open(accelerator: Accelerator, error: Exception, where: str) -> None:
    """Count and log an internal error so that the leaf can run plainly; raise it when strict."""
    if isinstance(error, MEANT) or accelerator.options.strict:
        raise error
    reason = type(error).__name__
    accelerator.count_bypass(where, reason)
    # Text only: a kept record would keep the error, its frames and so the whole program alive. And
    # not at this level: it may hold what the program works on.
    logger.debug("%s runs without the scheduler: %s", where, str(error))
    if _is_due(accelerator, reason):
        logger.warning(
            "%s runs without the scheduler: %s; its text is logged at level DEBUG, further ones are"
            " only counted for %d seconds",
            where,
            reason,
            WARN_EVERY_S,
        )


def _is_due(accelerator: Accelerator, reason: str) -> bool:
    """Tell whether a warning for this reason may be logged; a service must not be flooded."""
    warned = _warned.setdefault(accelerator, {})
    now = time.monotonic()
    if now - warned.get(reason, -math.inf) < WARN_EVERY_S:
        return False
    warned[reason] = now
    return True


def start_in_pool(
    accelerator: Accelerator, call: Callable[[], T], where: str
) -> asyncio.Future[T] | None:
    """Start a call in the accelerator's threads; ``None`` after an internal error of ours."""
    try:
        return accelerator.calls.start(call)
    except Exception as error:
        fail_open(accelerator, error, where)
        return None


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


# Let an owned engine compute, and the plain way where the engine, not the program, failed.


def owned_or_plain(
    accelerator: Accelerator,
    owned: Callable[[], T],
    plain: Callable[[], T],
    where: str,
) -> T:
    """Return ``owned()``; if that fails, ``plain()``, whose own error is what the program sees.

    Where the plain way succeeds the failure was ours: counted and logged, raised when strict.
    """
    try:
        return owned()
    except MEANT:
        raise
    except Exception as error:
        result = plain()
        fail_open(accelerator, error, where)
        return result


async def aowned_or_plain(
    accelerator: Accelerator,
    owned: Callable[[], Awaitable[T]],
    plain: Callable[[], Awaitable[T]],
    where: str,
) -> T:
    """Do as ``owned_or_plain`` on the caller's loop."""
    try:
        return await owned()
    except MEANT:
        raise
    except Exception as error:
        result = await plain()
        fail_open(accelerator, error, where)
        return result
