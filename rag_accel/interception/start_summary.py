"""One line on standard error about a process that is accelerated as a whole."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from contextlib import suppress

from rag_accel.config import is_enabled, is_summary_on
from rag_accel.interception.leaf_call import NotedCall, meters
from rag_accel.interception.leaf_table import AROUND_PARTS, why_not
from rag_accel.interception.option_reach import reasons_in_line
from rag_accel.system.methods import plain_class

#: leaf calls, and seconds after the first of them, by which a program has started
MOST_CALLS, MOST_S = 200, 10.0

NOTHING = "nothing was accelerated: no model, retriever, store or reranker was called"


class StartSummary:
    """A meter of the first calls of a process, which then prints its line and leaves.

    Args:
        says_nothing: whether a process that ends without a call says so.
    """

    def __init__(self, *, says_nothing: bool) -> None:
        self._says_nothing = says_nothing
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._reasons: dict[str, str] = {}
        self._num_calls = 0
        self._until = 0.0
        self._is_over = False

    def begin(self) -> None:
        """Meter calls from now on, at most until the process ends."""
        meters.append(self.note)
        atexit.register(self.end)

    def note(self, call: NotedCall) -> None:
        """Learn of a call; print the line once there were enough."""
        if call.way is None:
            return
        now = time.monotonic()
        with self._lock:
            if self._num_calls == 0:
                self._until = now + MOST_S
            self._num_calls += 1
            name = plain_class(type(call.obj)).__name__
            if call.way == "owned":
                self._reasons[name] = ""
            elif name not in self._reasons:
                self._reasons[name] = why_not(call.obj, call.accelerator)
            is_enough = self._num_calls >= MOST_CALLS or now >= self._until
        if is_enough:
            self.end()

    def end(self) -> None:
        """Print the line, in the process that it is about, and leave the meters."""
        with self._lock:
            is_due, self._is_over = not self._is_over and os.getpid() == self._process, True
        if self.note in meters:
            meters.remove(self.note)
        atexit.unregister(self.end)
        line = self.line() if is_due and is_enabled() else ""
        if line and sys.__stderr__ is not None:
            with suppress(OSError, ValueError):  # the program has closed it
                print(f"rag-accel: {line}", file=sys.__stderr__, flush=True)

    def line(self) -> str:
        """Return the line; empty where nothing is to be said."""
        with self._lock:
            reasons = dict(self._reasons)
        if not reasons:
            return NOTHING if self._says_nothing else ""
        acts = [name for name, reason in reasons.items() if not reason]
        idle = [pair for pair in reasons.items() if pair[1] not in ("", AROUND_PARTS)]
        acting = f"acts: {', '.join(acts) or 'nothing'}"
        return f"{acting}; does not: {reasons_in_line(idle)}" if idle else acting


_begun: list[StartSummary] = []


def summarise(*, says_nothing: bool = True) -> None:
    """Print one line about this process when it has started; once is enough.

    Args:
        says_nothing: whether a process that ends without a call says so.
    """
    if is_summary_on() and is_enabled() and not _begun:
        _begun.append(StartSummary(says_nothing=says_nothing))
        _begun[0].begin()
