"""The number of FAISS threads for a scan, learned from the times of earlier scans of its size.

Waking a second core costs FAISS more than a short scan takes: one query over 20,000 vectors was
measured at 1.1 ms on one thread and 4.4 ms on two. The break-even depends on the machine, its load
and the size, so both numbers of threads are measured in the searches that callers make.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Literal

Width = Literal["one", "most"]

#: a scan shorter than this on one thread stays there, in seconds
WORTH_WAKING_S = 0.002
#: measurements kept for each size and number of threads; the least counts, since other work of the
#: machine only ever adds
KEPT = 32
#: measurements on most threads before they are compared: the first one starts the threads
LEAST_TRIED = 3
#: most of the time on one thread that most threads may take: they are taken from other callers
WORTH_SHARE = 0.7
#: searches of a size between measurements of the slower number of threads: of all threads, and of
#: one; a wrong choice on a busy machine costs more on all
TRY_MOST, TRY_ONE = 64, 8


class SearchThreads:
    """Learned times of scans on one thread and on most; sizes within a power of two are one.

    Used from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times: dict[tuple[int, Width], deque[float]] = {}
        self._searches: dict[int, int] = {}

    def choose(self, numbers: int, most: int) -> int:
        """Return how many threads to scan on, 1 or ``most``.

        Args:
            numbers: components that are read: queries times vectors times dimension.
            most: threads that FAISS would use by itself.
        """
        if most <= 1:
            return 1
        size = numbers.bit_length()
        with self._lock:
            one, many = self._kept(size, "one"), self._kept(size, "most")
            if not one or min(one) * numbers < WORTH_WAKING_S:
                return 1
            if len(many) < LEAST_TRIED:
                return most
            self._searches[size] = self._searches.get(size, 0) + 1
            is_faster = min(many) < WORTH_SHARE * min(one)
            tries_other = self._searches[size] % (TRY_ONE if is_faster else TRY_MOST) == 0
            return most if is_faster != tries_other else 1

    def note(self, numbers: int, threads: int, seconds: float) -> None:
        """Learn from a scan of ``numbers`` on so many threads."""
        with self._lock:
            kept = self._kept(numbers.bit_length(), "one" if threads == 1 else "most")
            kept.append(seconds / max(1, numbers))

    def _kept(self, size: int, width: Width) -> deque[float]:
        kept = self._times.get((size, width))
        if kept is None:
            kept = self._times[size, width] = deque(maxlen=KEPT)
        return kept
