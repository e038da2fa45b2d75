"""Find the run an intercepted call belongs to, and get it admitted without ever breaking it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, TypeVar

from langchain_core.runnables.config import var_child_runnable_config

from langchain_rag_accel.activation import activated
from rag_accel.accelerator import (
    Accelerator,
    RequestIdentity,
    current_request,
    default_accelerator,
)
from rag_accel.config import is_enabled
from rag_accel.engine_api import PrimitiveKind
from rag_accel.errors import BusyError, DeadlineError, ForkedError, RequestCancelledError

logger = logging.getLogger("rag_accel.langchain")

T = TypeVar("T")

#: Where a run's identity travels in a config. The leading underscores keep it out of checkpoint
#: and event metadata.
CONFIG_KEY = "__rag_accel"


@dataclass(slots=True)
class Hold:
    """Be one permit that the current context holds; contexts copied from it may outlive it."""

    obj: int
    kind: PrimitiveKind
    is_active: bool = True


#: What the context's leaf calls itself is part of the same leaf.
held: ContextVar[tuple[Hold, ...]] = ContextVar("rag_accel_held", default=())

#: Errors that are the caller's own limits or doing. Whatever else happens to a leaf before the
#: program's code runs is our failure, and must not become the program's.
MEANT = (BusyError, DeadlineError, ForkedError, RequestCancelledError)


def carried_identity(config: Any) -> RequestIdentity | None:
    """Return the run whose identity a config, or the first of several configs, carries."""
    if isinstance(config, list | tuple):
        config = config[0] if config else None
    identity = (config.get("configurable") or {}).get(CONFIG_KEY) if config else None
    return identity if isinstance(identity, RequestIdentity) else None


def with_identity(config: Any, identity: RequestIdentity) -> Any:
    """Return a config, or each of several, that carries an identity and is else the same."""
    if isinstance(config, list | tuple):
        return [with_identity(one, identity) for one in config]
    given = dict(config or {})
    inside = given.get("configurable")
    if inside is None:
        # Where a config says nothing, LangChain takes what the context says.
        inside = (var_child_runnable_config.get() or {}).get("configurable")
    given["configurable"] = {**(inside or {}), CONFIG_KEY: identity}
    return given


def current_run(own: Accelerator | None = None) -> RequestIdentity | None:
    """Return the run this context is part of, if any, and if it is one of ``own``'s."""
    run = _named_run()
    return run if run is not None and is_usable(run, own) else None


def is_usable(run: RequestIdentity, own: Accelerator | None) -> bool:
    """Tell whether a call on ``own``, if it has one, can be part of a run, here and now."""
    return not run.has_ended and _is_served(run, own)


def _is_served(run: RequestIdentity, own: Accelerator | None) -> bool:
    # A forked child is no part of its parent's runs.
    return not run.accelerator.forked and own in (None, run.accelerator)


def _named_run() -> RequestIdentity | None:
    """Return the run that config and context name.

    They may name two, one inside the other; the inner one started later.
    """
    here = carried_identity(var_child_runnable_config.get())
    other = current_request.get()
    if here is None or (other is not None and other.arrived_at > here.arrived_at):
        return other
    return here


def find_identity(own: Accelerator | None = None) -> RequestIdentity | None:
    """Return the run an intercepted call belongs to, or ``None`` if it is to run plainly.

    What a run has left behind goes on for itself: neither its age nor its deadline is the run's.
    Under ``activate()`` a call outside any run is a run of its own.
    """
    if not is_enabled():
        return None
    run = _named_run()
    if run is not None and _is_served(run, own):
        return run.accelerator.anonymous() if run.has_ended else run
    accelerator = activated()
    if accelerator is None or (own is not None and accelerator is not own):
        return None
    return accelerator.anonymous()


def identity_for(own: Accelerator | None) -> RequestIdentity | None:
    """Return the current run, or a fresh anonymous one for an object that is always scheduled."""
    if not is_enabled():
        return None
    return find_identity(own) or (own or default_accelerator()).anonymous()


def fail_open(accelerator: Accelerator, error: Exception, where: str) -> None:
    """Count and log an internal error so that the leaf can run plainly; raise it when strict."""
    if isinstance(error, MEANT) or accelerator.options.strict:
        raise error
    accelerator.count_bypass(where, type(error).__name__)
    # Text only: a kept record would keep the error, its frames and so the whole program alive.
    logger.warning("%s runs without the scheduler: %s", where, str(error))


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
    """Set a context variable while the block runs."""

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


class Admission:
    """Hold a permit of the borrowed engine ``name`` while the block runs in this thread.

    Gives whether there is one: after an internal error of ours the block runs without.
    """

    __slots__ = ("_identity", "_kind", "_name", "_permit")

    def __init__(self, identity: RequestIdentity, name: str, kind: PrimitiveKind) -> None:
        self._identity, self._name, self._kind = identity, name, kind
        self._permit: AbstractContextManager[None] | None = None

    def __enter__(self) -> bool:
        accelerator = self._identity.accelerator
        try:
            engine = accelerator.borrow(self._name, self._kind)
            permit = accelerator.leaves.permit(self._identity, engine, self._kind)
            permit.__enter__()
        except Exception as error:
            fail_open(accelerator, error, self._name)
            return False
        self._permit = permit
        return True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._permit is not None:
            self._permit.__exit__(kind, error, trace)


class AsyncAdmission:
    """Hold a permit of the borrowed engine ``name`` while the block runs on this loop.

    Gives whether there is one. A class, since a loop that closes ends all asynchronous generators
    it knows at once: a context manager made of one would be gone before the stream inside it.
    """

    __slots__ = ("_identity", "_kind", "_name", "_permit")

    def __init__(self, identity: RequestIdentity, name: str, kind: PrimitiveKind) -> None:
        self._identity, self._name, self._kind = identity, name, kind
        self._permit: AbstractAsyncContextManager[None] | None = None

    async def __aenter__(self) -> bool:
        accelerator = self._identity.accelerator
        try:
            engine = accelerator.borrow(self._name, self._kind)
            permit = accelerator.leaves.apermit(self._identity, engine, self._kind)
            await permit.__aenter__()
        except Exception as error:
            fail_open(accelerator, error, self._name)
            return False
        self._permit = permit
        return True

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._permit is not None:
            await self._permit.__aexit__(kind, error, trace)
