"""An owned engine driven as the scheduler does it: on one thread of its own, with a time limit."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from types import TracebackType
from typing import Any, TypeVar

from rag_accel.engine_api import (
    Engine,
    EngineOutput,
    EngineRequest,
    Handle,
    StepBudget,
    WorkId,
)

T = TypeVar("T")

_INTERRUPT_EVERY_S = 0.01


class EngineRunner:
    """A worker thread for every method of an engine but ``interrupt``.

    A context manager: leaving it closes the engine and ends the thread. Whatever takes longer than
    ``timeout_s`` seconds raises AssertionError, as a test that hangs would tell nothing.
    """

    def __init__(self, engine: Engine, timeout_s: float = 30.0) -> None:
        self.engine = engine
        self._timeout_s = timeout_s
        self._closed = False
        self._mailbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._work, name="engine-runner", daemon=True)
        self.thread.start()

    def __enter__(self) -> EngineRunner:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if not self._closed and error is None:
                self.close()
            elif not self._closed:
                # The failure is what matters now, and the engine may hang: do not wait for it.
                self._post(self.engine.close)
        finally:
            self._mailbox.put(None)
            self.thread.join(self._timeout_s if error is None else 0.0)

    def submit(self, work: Sequence[EngineRequest]) -> None:
        self._call("submit", lambda: self.engine.submit(work))

    def step(self, budget: StepBudget | None = None) -> list[EngineOutput]:
        """Call ``step``, by default without a time bound and with one thread."""
        granted = budget if budget is not None else StepBudget()
        return self._call("step", lambda: list(self.engine.step(granted)))

    def step_under_interrupts(self) -> list[EngineOutput]:
        """Call ``step`` and, from the calling thread, ``interrupt`` until the step returns."""
        step = self._post(lambda: list(self.engine.step(StepBudget())))
        deadline = time.monotonic() + self._timeout_s
        while not step.done():
            if time.monotonic() > deadline:
                raise AssertionError(f"step() waited on through {self._timeout_s} s of interrupts")
            # Again and again: the step may not have begun to wait at the first one.
            self.engine.interrupt()
            concurrent.futures.wait([step], _INTERRUPT_EVERY_S)
        return step.result()

    def cancel(self, ids: Sequence[WorkId]) -> None:
        self._call("cancel", lambda: self.engine.cancel(ids))

    def release(self, handles: Sequence[Handle]) -> None:
        self._call("release", lambda: self.engine.release(handles))

    def close(self) -> None:
        self._closed = True
        self._call("close", self.engine.close)

    def run(self, work: Sequence[EngineRequest]) -> list[EngineOutput]:
        """Submit work, step until all of it has ended and once more, and return all outputs.

        The last step shows whether the engine reports on work that has ended.
        """
        self.submit(work)
        return [*self.finish([request.id for request in work]), *self.step()]

    def finish(self, ids: Sequence[WorkId]) -> list[EngineOutput]:
        """Step until each of these ids has ended and return all outputs on the way."""
        outputs: list[EngineOutput] = []
        unfinished = set(ids)
        deadline = time.monotonic() + self._timeout_s
        while unfinished:
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"no final or error output for {sorted(unfinished)} in {self._timeout_s} s"
                )
            found = self.step()
            unfinished -= {output.id for output in found if output.kind in ("final", "error")}
            outputs += found
        return outputs

    def _call(self, name: str, function: Callable[[], T]) -> T:
        future = self._post(function)
        concurrent.futures.wait([future], self._timeout_s)
        if not future.done():
            raise AssertionError(f"{name}() did not return within {self._timeout_s} s")
        return future.result()

    def _post(self, function: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self._mailbox.put(lambda: _settle(future, function))
        return future

    def _work(self) -> None:
        while (task := self._mailbox.get()) is not None:
            task()


def _settle(future: Future[Any], function: Callable[[], Any]) -> None:
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)
