"""An open load on one arm: the highest rate at which it keeps an objective, and what is late.

A request's latency counts from when it was due until its caller has the answer. A load that has
missed its objective for good is not carried on: what runs is waited for and nothing more begins.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import random
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from bench.workflows.arms import Ask
from bench.workflows.parts import Request
from rag_accel.errors import DeadlineError

#: callers in threads; what waits beyond them waits as it would in a web server
THREADS = 64
#: the share of requests that may miss the objective
MISSES = 0.05


@dataclass(slots=True)
class Timed:
    """A request under way, and how long it took."""

    future: Future[Any]
    due: float
    ended: float = math.inf

    def done(self, future: Future[Any]) -> None:
        """Note the end."""
        self.ended = time.perf_counter()

    def latency_s(self) -> float:
        """Return the seconds since it was due, so far."""
        return min(self.ended, time.perf_counter()) - self.due


class Callers:
    """Threads for blocking calls, and one loop for the others."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown()
        self.wait(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def begin(self, ask: Ask, request: Request, due: float | None = None) -> Timed:
        """Begin a request."""
        if inspect.iscoroutinefunction(ask):
            future = asyncio.run_coroutine_threadsafe(ask(request), self._loop)
        else:
            future = self._pool.submit(ask, request)
        begun = Timed(future, time.perf_counter() if due is None else due)
        future.add_done_callback(begun.done)
        return begun

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the loop and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def one(self, ask: Ask, request: Request) -> tuple[Any, float]:
        """Return the answer to a lone request, and its seconds."""
        begun = self.begin(ask, request)
        answer = begun.future.result()
        return answer, begun.latency_s()

    def keeps(
        self, ask: Ask, requests: Sequence[Request], rate: float, seconds: float, most_s: float
    ) -> bool:
        """Tell whether 95 % of the requests of a Poisson process end within ``most_s``."""
        dues = arrivals(rate, seconds)
        allowed, begun = MISSES * len(dues), list[Timed]()
        for one in self._arriving(ask, requests, dues):
            begun.append(one)
            if _missed(begun, most_s) > allowed:
                break
        for one in begun:
            one.future.result()
        return len(begun) == len(dues) and _missed(begun, most_s) <= allowed

    def late_share(
        self, ask: Ask, requests: Sequence[Request], rate: float, seconds: float, most_s: float
    ) -> float:
        """Return the share of a Poisson process's requests without an answer within ``most_s``.

        A request that ends by ``DeadlineError`` is late. When the last request is late, whatever
        has not begun is cancelled: its answer would change nothing.
        """
        begun = list(self._arriving(ask, requests, arrivals(rate, seconds)))
        time.sleep(max(0.0, begun[-1].due + most_s - time.perf_counter()))
        late = {number for number, one in enumerate(begun) if one.future.cancel()}
        for number, one in enumerate(begun):
            error = None if number in late else one.future.exception()
            if error is not None and not isinstance(error, DeadlineError):
                raise error
            if error is not None or one.latency_s() > most_s:
                late.add(number)
        return len(late) / len(begun)

    def _arriving(
        self, ask: Ask, requests: Sequence[Request], dues: Sequence[float]
    ) -> Iterator[Timed]:
        """Begin a request whenever one is due, in seconds from now."""
        began = time.perf_counter() + 0.01
        for number, due in enumerate(dues):
            while (left := began + due - time.perf_counter()) > 0:
                time.sleep(min(left, 0.05))
            yield self.begin(ask, requests[number % len(requests)], began + due)


def arrivals(rate: float, seconds: float) -> list[float]:
    """Return when requests are due: as many as the rate brings, at independent, uniform times."""
    draws = random.Random(0)
    return sorted(draws.uniform(0, seconds) for _ in range(max(1, round(rate * seconds))))


def _missed(begun: Sequence[Timed], most_s: float) -> int:
    return sum(one.latency_s() > most_s for one in begun)


def highest_rate(keeps: Callable[[float], bool], start: float, probes: int) -> float:
    """Return the highest rate that keeps the objective, by a short bisection.

    From ``start`` the rate is doubled, or halved, until one keeps it and a higher one does not;
    then the geometric mean of both is tried. At most ``probes`` rates are tried, but until one
    keeps it; the answer lies between the last two.
    """
    low, high, tried = 0.0, math.inf, 0
    while tried < probes or not low:
        rate = high / 2 if not low else low * 2 if math.isinf(high) else math.sqrt(low * high)
        rate = start if not tried else rate
        low, high = (rate, high) if keeps(rate) else (low, rate)
        tried += 1
        if tried >= 4 * probes:
            return 0.0
    return low if math.isinf(high) else math.sqrt(low * high)
