"""Independent calls of one object, run side by side in threads or as tasks of one loop.

The first call runs in the caller's own thread and context; the others run in the accelerator's
threads, or in the caller's if those are busy, each in a copy of the caller's context. On a loop
each runs as a task. The framework makes these calls one by one. What stays as it is there:

- results keep their order, and the error that leaves is the first in that order;
- none is begun after one has failed, and those under way are over before the error leaves;
- what a call sets in its context is set in the caller's, in order, once all are over.

What does not: calls see neither each other's context nor the caller's thread, and those begun
beside one that fails have been made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import closing
from contextvars import Context, copy_context
from functools import partial
from threading import Condition
from typing import Any, TypeVar

from rag_accel.accelerator import Accelerator
from rag_accel.interception.fallback import fail_open
from rag_accel.interception.identity import find_identity
from rag_accel.interception.leaf_call import is_inside_leaf, is_nested, is_part_of_unscheduled
from rag_accel.interception.watching import obstacle_ahead, watched_request
from rag_accel.system.thread_safety import Preparation, ThreadSafety

T = TypeVar("T")

#: The most calls of one object that run at once, the caller's own among them.
MAX_AT_ONCE = 8

_ABSENT = object()


def accelerator_of_calls(leaf: Any = None) -> Accelerator | None:
    """Return the accelerator whose request calls made here are part of; ``None`` if in order.

    They are made in order outside of any request, with ``parallel_calls=False``, and inside a leaf
    that holds a permit, which stands for one call.

    Args:
        leaf: makes the calls itself, each with a permit of its own, if it holds none.
    """
    if (watched := watched_request.get()) is not None:  # which notes that they could be parallel
        accelerator, is_inside = watched.watch.accelerator, is_part_of_unscheduled(leaf)
    elif (identity := find_identity()) is not None:
        accelerator = identity.accelerator
        is_inside = is_inside_leaf() if leaf is None else is_nested(leaf)
    else:
        return None
    return accelerator if accelerator.options.parallel_calls and not is_inside else None


def preparation_for(
    accelerator: Accelerator, safety: ThreadSafety, uses: Callable[[], Iterable[object]]
) -> Preparation | None:
    """Return what is to be done before these objects are used in several threads.

    ``None`` if they may not be, or after an internal error of ours.
    """
    try:
        found = safety.check(uses(), accelerator.options.thread_safe_classes)
    except Exception as error:
        fail_open(accelerator, error, __name__)
        return None
    if watched_request.get() is not None:
        return partial(obstacle_ahead.set, found if isinstance(found, str) else "")
    return None if isinstance(found, str) else found


def obstacle(accelerator: Accelerator, safety: ThreadSafety, uses: Iterable[object]) -> str | None:
    """Return why objects may not be used in several threads; ``None`` if they may."""
    found = safety.check(uses, accelerator.options.thread_safe_classes)
    return found if isinstance(found, str) else None


def run_side_by_side(
    accelerator: Accelerator, calls: Sequence[Callable[[], T]], limit: int = MAX_AT_ONCE
) -> list[T]:
    """Return the results in order; raises the first error in that order.

    Args:
        accelerator: whose threads help.
        calls: what may run at the same time.
        limit: the most that do.
    """
    at_once = min(limit, MAX_AT_ONCE, len(calls))
    if at_once < 2:
        return [call() for call in calls]
    if (watched := watched_request.get()) is not None:
        with closing(watched.watch.placed(calls, at_once)) as placed:
            return [call() for call in placed]
    return _Calls(calls).run(accelerator, at_once - 1)


async def arun_side_by_side(calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Return the results of coroutines in order; raises the first error in that order."""
    if len(calls) < 2:
        return [await call() for call in calls]
    at_once = min(MAX_AT_ONCE, len(calls))
    if (watched := watched_request.get()) is not None:
        with closing(watched.watch.placed(calls, at_once)) as placed:
            return [await call() for call in placed]
    return await _Tasks(calls).run(at_once)


class Outcomes:
    """Results, errors and context changes of calls."""

    def __init__(self, number: int) -> None:
        self._before = copy_context()
        self.contexts = [self._before.copy() for _ in range(number)]
        self.values: list[Any] = [None] * number
        self.errors: dict[int, BaseException] = {}

    @classmethod
    def of(cls, call: Callable[[], object]) -> Outcomes:
        """Return the outcome of a call that is made here; its error may be any."""
        made = cls(1)
        try:
            made.values[0] = made.contexts[0].run(call)
        except BaseException as error:  # also one that no future can hold, a StopIteration
            made.errors[0] = error
        return made

    def result(self) -> Any:
        """Return or raise as ``results`` does for the only call."""
        return self.results()[0]

    def results(self, own: Context | None = None) -> list[Any]:
        """Set here what the calls up to the first that failed have set; return or raise.

        Args:
            own: the context among theirs that the caller's stood for.
        """
        failed = min(self.errors, default=None)
        end = len(self.contexts) if failed is None else failed + 1
        for context in self.contexts[:end]:
            for var, value in () if context is own else context.items():
                if value is not self._before.get(var, _ABSENT):
                    var.set(value)
        if failed is None:
            return self.values
        error = self.errors[failed]
        self.errors.clear()
        try:
            raise error
        finally:
            del error  # whose traceback leads here


class _Calls:
    """Calls of which threads take one after the other, the caller's thread among them.

    No call waits for a thread to be free: what no other has taken, the caller takes. So composites
    inside of composites end with any number of threads.
    """

    def __init__(self, calls: Sequence[Callable[[], Any]]) -> None:
        self._calls = calls
        self._outcomes = Outcomes(len(calls))
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
        return self._outcomes.results(own=self._outcomes.contexts[0])

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
            context = self._outcomes.contexts[place]
            self._do(place, partial(context.run, self._calls[place]))

    def _take(self) -> int | None:
        with self._changed:
            if self._stopped or self._num_taken == len(self._calls):
                return None
            self._num_taken += 1
            self._under_way += 1
            return self._num_taken - 1

    def _do(self, place: int, call: Callable[[], Any]) -> None:
        try:
            self._outcomes.values[place] = call()
        except BaseException as error:
            self._outcomes.errors[place] = error
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


class _Tasks:
    """Coroutines of which tasks of the caller's loop take one after the other."""

    def __init__(self, calls: Sequence[Callable[[], Awaitable[Any]]]) -> None:
        self._calls = calls
        self._outcomes = Outcomes(len(calls))
        self._num_taken = 0
        self._stopped = False

    async def run(self, at_once: int) -> list[Any]:
        """Return the results in order; raises the first error in that order."""
        workers = [asyncio.ensure_future(self._work()) for _ in range(at_once)]
        try:
            await asyncio.gather(*workers)
        except BaseException:  # the caller is cancelled, or one of them asks the loop to end
            self._stopped = True
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            raise
        return self._outcomes.results()

    async def _work(self) -> None:
        while not self._stopped and self._num_taken < len(self._calls):
            place = self._num_taken
            self._num_taken += 1
            call, context = self._calls[place], self._outcomes.contexts[place]
            try:
                task = asyncio.get_running_loop().create_task(_awaited(call), context=context)
                self._outcomes.values[place] = await task
            except Exception as error:
                self._outcomes.errors[place] = error
                self._stopped = True


async def _awaited(call: Callable[[], Awaitable[T]]) -> T:
    return await call()
