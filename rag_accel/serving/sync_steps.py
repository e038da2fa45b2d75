"""The threads in which a server's loop runs the steps of programs that are not async."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import ParamSpec, TypeVar

from rag_accel.leaves.call_pool import SubmittedCall
from rag_accel.leaves.request_threads import RequestThreads, request_threads

P = ParamSpec("P")
T = TypeVar("T")

MOST_STEPS = 32
"""Most steps of one request in threads at once, as asyncio has at most for a whole program."""


class RequestSteps(RequestThreads):
    """The threads of one request, and its steps that wait until fewer of its others run."""

    def __init__(self) -> None:
        super().__init__()
        self._steps: deque[Callable[[], None]] = deque()
        self._workers: set[object] = set()

    def start(self, step: Callable[[], None], submit: Callable[..., object]) -> None:
        """Have a thread run a step; ``submit`` starts a function in a thread, or raises."""
        worker = object()
        with self._lock:
            self._steps.append(step)
            if len(self._workers) >= MOST_STEPS:
                return
            self._workers.add(worker)
        try:
            submit(self._work, worker)
        except BaseException:
            with self._lock:
                self._workers.discard(worker)
                with suppress(ValueError):  # another worker took it
                    self._steps.remove(step)
            raise

    def _work(self, worker: object) -> None:
        while True:
            with self._lock:
                if worker not in self._workers:  # its start failed, and yet came later
                    return
                if not self._steps:
                    self._workers.remove(worker)
                    return
                step = self._steps.popleft()
            step()
            del step


class SyncSteps(ThreadPoolExecutor):
    """Threads for the steps of requests, so many that no request waits for those of another.

    The request of a step is that of the context in which it is submitted.

    Args:
        places: requests that may be under way.
    """

    def __init__(self, places: int) -> None:
        super().__init__(MOST_STEPS * (places + 1), "rag-accel-serve")
        #: what belongs to no request
        self._others = RequestSteps()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a function in a thread."""
        found = request_threads.get()
        steps = found if isinstance(found, RequestSteps) else self._others
        call = SubmittedCall(partial(fn, *args, **kwargs))
        steps.start(call.run, super().submit)
        return call.future
