"""Calls that a user might have made, which record where they ran."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class BorrowedCall:
    """A record of where one call ran.

    ``loop`` is the running event loop, None in a thread without one. ``context_value`` is what the
    watched ContextVar held, None if none is watched or it had no value.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    thread_id: int
    loop: asyncio.AbstractEventLoop | None
    context_value: Any


def first_argument(*args: Any, **kwargs: Any) -> Any:
    """Return the first argument, None without one."""
    return args[0] if args else None


class _Recorder:
    """A recorder of calls and of how many were under way at once; thread-safe.

    Args:
        result: computes the result of a call, or raises its error.
        duration_s: how long a call takes.
        context_var: variable whose value each call records.
        wait: called with ``duration_s``; by default it really sleeps.
    """

    _sleep: Callable[[float], Any]

    def __init__(
        self,
        result: Callable[..., Any] = first_argument,
        *,
        duration_s: float = 0.0,
        context_var: ContextVar[Any] | None = None,
        wait: Callable[[float], Any] | None = None,
    ) -> None:
        self._wait = self._sleep if wait is None else wait
        self._result = result
        self._duration_s = duration_s
        self._context_var = context_var
        self._lock = threading.Lock()
        #: calls that have begun and not yet ended, and the most of them at once
        self.under_way = self.peak = 0
        self._calls: list[BorrowedCall] = []

    @property
    def calls(self) -> list[BorrowedCall]:
        """Return the calls in the order they began."""
        with self._lock:
            return list(self._calls)

    @contextmanager
    def _recorded(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[None]:
        value = self._context_var.get(None) if self._context_var is not None else None
        call = BorrowedCall(args, dict(kwargs), threading.get_ident(), _running_loop(), value)
        with self._lock:
            self._calls.append(call)
            self.under_way += 1
            self.peak = max(self.peak, self.under_way)
        try:
            yield
        finally:
            with self._lock:
                self.under_way -= 1


class FakeAsyncCall(_Recorder):
    """An async callable, as a user's, that records loop, thread, context and concurrency.

    ``wait`` is awaited.
    """

    _sleep = staticmethod(asyncio.sleep)

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Record the call, wait, and return the result."""
        with self._recorded(args, kwargs):
            await self._wait(self._duration_s)
            return self._result(*args, **kwargs)


class FakeSyncCall(_Recorder):
    """A blocking callable, as a user's, that records loop, thread, context and concurrency."""

    _sleep = staticmethod(time.sleep)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Record the call, wait, and return the result."""
        with self._recorded(args, kwargs):
            self._wait(self._duration_s)
            return self._result(*args, **kwargs)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
