"""The wait for threads that were asked to end, at the latest when the interpreter exits.

Python ends a daemon thread where it takes the interpreter back after that has gone. If a native
library such as torch is what takes it back, its frames cannot be unwound, and the whole process
dies of SIGABRT after all its work was done.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Iterator
from typing import Final

from rag_accel.errors import ClosedError

#: how long the exit of the interpreter waits for threads that nobody has waited for before
EXIT_S: Final = 5.0


class LivingThreads:
    """Started threads until they end.

    Without a lock, which a finalizer could find held by the thread that it interrupts: what reads
    or changes the set is one call, in which nothing else runs.
    """

    def __init__(self) -> None:
        self._threads: set[threading.Thread] = set()

    def add(self, thread: threading.Thread) -> None:
        """Note a thread, and forget those that have ended."""
        self._threads.add(thread)
        for thread in self:
            if not thread.is_alive():
                self.discard(thread)

    def discard(self, thread: threading.Thread) -> None:
        self._threads.discard(thread)

    def __iter__(self) -> Iterator[threading.Thread]:
        return iter(tuple(self._threads))


_unawaited = LivingThreads()


def note_ending(thread: threading.Thread) -> None:
    """Remember a thread that was asked to end; from any thread, also from a finalizer."""
    _unawaited.add(thread)


def join(thread: threading.Thread, timeout_s: float) -> bool:
    """Wait for a thread for at most so long; tell whether it has ended.

    A thread does not wait for itself. One that was given time here is not waited for again when the
    interpreter exits.
    """
    if thread is threading.current_thread():
        return False
    thread.join(timeout_s)
    if timeout_s > 0.0:
        _unawaited.discard(thread)
    return not thread.is_alive()


def end_daemons_quietly() -> None:
    """Print no tracebacks of daemon threads that end with ClosedError; as the interpreter exits.

    Without us they would be frozen in the calls that they wait for, and nothing said. They are not
    held here: what the program does at exit may wait for them.
    """
    tell = threading.excepthook

    def tell_unless_closed(args: threading.ExceptHookArgs) -> None:
        is_daemon = args.thread is not None and args.thread.daemon
        if not (is_daemon and isinstance(args.exc_value, ClosedError)):
            tell(args)

    threading.excepthook = tell_unless_closed


@atexit.register
def _join_all() -> None:
    """Wait for the threads that are left. Accelerators, which exit first, have closed theirs."""
    until = time.monotonic() + EXIT_S
    for thread in _unawaited:
        join(thread, max(0.0, until - time.monotonic()))
