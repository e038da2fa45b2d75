"""Follow one call of a translated program: what it has open, and what it has come to."""

from __future__ import annotations

import asyncio
from threading import Lock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rag_accel_adapters.langchain_runs import Scope


class Stopped(BaseException):
    """Leave a request of a batch that has already failed; never reaches the user."""


class Batch:
    """Let no input of a batch begin a step beyond one in which another input has failed."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._last: int | None = None

    def check(self, step: int) -> None:
        """Raise Stopped if an earlier step has failed."""
        with self._lock:
            if self._last is not None and step > self._last:
                raise Stopped

    def failed(self, step: int) -> None:
        """Note that an input failed in this step."""
        with self._lock:
            self._last = step if self._last is None else min(step, self._last)


class Request:
    """Know which runs one call of a translated program has open.

    Args:
        batch: the batch this call is an input of, if steps of others matter to it.

    Attributes:
        step: the step of the outermost sequence that it has reached.
        result: what the last stage made of it, once it has.
        outcome: resolved with the same, or with the first error that reaches the program while
            other branches may still run; set by an async caller.
        runs_on: whether there was such an error.
    """

    def __init__(self, batch: Batch | None = None) -> None:
        self.step = 0
        self.result: Any = None
        self.runs_on = False
        self.outcome: asyncio.Future[Any] | None = None
        self._batch = batch
        self._lock = Lock()
        self._open: dict[Scope, None] = {}

    def reach(self, step: int) -> None:
        """Note that a step of the outermost sequence begins.

        Raises:
            Stopped: if it must not.
        """
        if self._batch is not None:
            self._batch.check(step)
        self.step = step

    def opened(self, scope: Scope) -> None:
        """Note that a run has started."""
        with self._lock:
            self._open[scope] = None

    def take(self, scope: Scope) -> bool:
        """Tell whether a run is still to be ended; only the first to ask may end it."""
        with self._lock:
            return self._open.pop(scope, self) is None

    def finished(self, result: Any, runs_on: bool = False) -> None:
        """Tell whoever waits what the program has come to, and whether other branches run on."""
        self.runs_on = self.runs_on or runs_on
        self.result = result
        if self.outcome is not None and not self.outcome.done():
            self.outcome.set_result(result)

    def left(self) -> list[Scope]:
        """Return the runs still open, innermost first."""
        with self._lock:
            return list(reversed(self._open))
