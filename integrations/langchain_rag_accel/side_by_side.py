"""The independent calls of a composite retriever or compressor, run side by side.

The first call runs in the caller's own thread and context; the others run in the accelerator's
threads, or in the caller's if those are busy, each in a copy of the caller's context. LangChain
makes these calls one by one. What stays as it is there:

- results keep their order, and the error that leaves is the first in that order;
- none is begun after one has failed, and those under way are over before the error leaves;
- what a call sets in its context is set in the caller's, in order, once all are over.

What does not: calls see neither each other's context nor the caller's thread, and those begun
beside one that fails have been made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial
from threading import Condition
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config

from rag_accel.accelerator import Accelerator, RequestIdentity
from rag_accel.adoption.owned_or_plain import fail_open
from rag_accel.config import is_enabled
from rag_accel.interception.identity import current_run
from rag_accel.interception.leaf_call import is_inside_leaf
from rag_accel.interception.leaf_table import leaf_methods, plain_method
from rag_accel_adapters.langchain.composites import composite_of, spread

T = TypeVar("T")
Method = Callable[..., Any]

#: The most calls of one composite that run at once, the caller's own among them.
MAX_AT_ONCE = 8

_ABSENT = object()


def spreading(method: Method) -> Method:
    """Return a composite's method as it is to run here: its calls side by side if they may.

    They may inside a request of an accelerator with ``mode="translate"``, unless the composite is
    part of a leaf that holds a permit, which stands for one call, or blocks a running loop, which
    code in other threads could not see.
    """
    run = current_run()
    if run is None or run.accelerator.options.mode != "translate" or not is_enabled():
        return method
    if is_inside_leaf() or _runs_in_loop():
        return method
    return spread(method, _RunAll(run))


def is_spread(cls: type) -> bool:
    """Tell whether objects of a class make calls that may run side by side."""
    methods = (plain_method(cls, leaf.name) for leaf in leaf_methods(cls))
    return any(composite_of(method) is not None for method in methods)


def _runs_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class _RunAll:
    """A function that runs a composite's calls for one request."""

    def __init__(self, run: RequestIdentity) -> None:
        self._accelerator = run.accelerator

    def __call__(
        self, calls: Sequence[Callable[[], T]], config: RunnableConfig | None = None
    ) -> list[T]:
        limit = ensure_config(config).get("max_concurrency") or MAX_AT_ONCE
        at_once = min(limit, MAX_AT_ONCE, len(calls))
        if at_once < 2:
            return [call() for call in calls]
        return _Calls(calls).run(self._accelerator, at_once - 1)


class _Calls:
    """Calls of which threads take one after the other, the caller's thread among them.

    No call waits for a thread to be free: what no other has taken, the caller takes. So composites
    inside of composites end with any number of threads.
    """

    def __init__(self, calls: Sequence[Callable[[], Any]]) -> None:
        self._calls = calls
        self._before = copy_context()
        self._contexts = [self._before.copy() for _ in calls]
        self._values: list[Any] = [None] * len(calls)
        self._errors: dict[int, BaseException] = {}
        self._changed = Condition()
        self._num_taken = 1  # the first is the caller's
        self._under_way = 1
        self._stopped = False

    def run(self, accelerator: Accelerator, num_helpers: int) -> list[Any]:
        """Return the results in order; raises the first error in that order."""
        try:
            self._call_helpers(accelerator, num_helpers)
            self._do(0, self._calls[0])
            self._help()
            with self._changed:
                self._changed.wait_for(lambda: self._under_way == 0)
        except BaseException:  # Ctrl-C, or an error of ours: the others are not waited for
            self._stop()
            raise
        failed = min(self._errors, default=None)
        self._hand_back(failed)
        if failed is None:
            return self._values
        error = self._errors[failed]
        self._errors.clear()
        try:
            raise error
        finally:
            del error  # whose traceback leads here

    def _call_helpers(self, accelerator: Accelerator, number: int) -> None:
        for _ in range(number):
            try:
                accelerator.calls.submit(self._help)
            except Exception as error:
                fail_open(accelerator, error, __name__)
                return

    def _help(self) -> None:
        """Take and make calls until none is left."""
        while (place := self._take()) is not None:
            self._do(place, partial(self._contexts[place].run, self._calls[place]))

    def _take(self) -> int | None:
        with self._changed:
            if self._stopped or self._num_taken == len(self._calls):
                return None
            self._num_taken += 1
            self._under_way += 1
            return self._num_taken - 1

    def _do(self, place: int, call: Callable[[], Any]) -> None:
        try:
            self._values[place] = call()
        except BaseException as error:
            self._errors[place] = error
            self._stop()
            if not isinstance(error, Exception):
                raise
        finally:
            with self._changed:
                self._under_way -= 1
                self._changed.notify_all()

    def _stop(self) -> None:
        with self._changed:
            self._stopped = True

    def _hand_back(self, failed: int | None) -> None:
        """Set here what the calls up to the one that failed have set in their contexts."""
        end = len(self._calls) if failed is None else failed + 1
        for context in self._contexts[1:end]:
            for var, value in context.items():
                if value is not self._before.get(var, _ABSENT):
                    var.set(value)
