"""Ask for something small, again and again, while something large is under way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bench.ablation.measured import Arm, Gave
from bench.measure import median
from bench.paired import in_ms

#: Callers that ask.
ASKING = 4


def beside(large: Callable[[], Sequence[Any]], small: Callable[[int], Any]) -> Arm:
    """Return the arm that tells the median latency of ``small`` while ``large`` is under way.

    ``small`` is given rising numbers. The answers are those of ``large``: how often ``small`` is
    asked is another matter in each run.
    """

    def run(turn: int) -> Gave:
        with _under_way(large) as (is_over, answers):
            latencies_s = _asking(small, is_over)
        return Gave(in_ms(median(latencies_s)), answers)

    return run


@contextmanager
def _under_way(
    large: Callable[[], Sequence[Any]],
) -> Iterator[tuple[threading.Event, list[Any]]]:
    is_over, answers = threading.Event(), list[Any]()

    def work() -> None:
        try:
            answers.extend(large())
        finally:
            is_over.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield is_over, answers
    finally:
        thread.join()


def _asking(small: Callable[[int], Any], is_over: threading.Event) -> list[float]:
    """Ask until it is over; what is asked before that counts, at least once by each caller."""
    latencies_s: list[float] = []

    def ask(number: int) -> None:
        is_first = True
        while is_first or not is_over.is_set():
            started = time.perf_counter()
            small(number)
            latencies_s.append(time.perf_counter() - started)
            number, is_first = number + ASKING, False

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(ASKING)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return latencies_s
