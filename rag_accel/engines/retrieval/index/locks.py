"""Locks for many reading threads or one writing thread, safe under interrupts and forks.

An exception can be raised into a program between almost any two of its steps: Ctrl-C, a signal
handler's time limit, ``PyThreadState_SetAsyncExc``. CPython 3.11 to 3.13 lets none in between
taking a lock written in C by ``with`` and the block, or between the block's end and the release.
They do come where ``__enter__`` or ``__exit__`` is written in Python, a generator's included, after
``acquire()`` before a ``try``, and in a ``finally``. So locks of the interpreter are held here, by
``with`` alone, and nothing is counted.

A forked child gets new locks (``system/locks.py``), and a fork waits until no thread is writing:
memory of FAISS is not to be read from halfway through a write.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from rag_accel.errors import ConfigError
from rag_accel.system.locks import ForkedAnew, living

MAX_READERS = 16  # a writer takes a lock for each, some 10 us in all

_RLock = Any  # the interpreter's own; ``_is_owned`` is missing in its published type


class IndexLock(ForkedAnew):
    """A lock for many readers or one writer; a waiting writer precedes new readers.

    Three locks, in the order in which a thread may take them: ``changing``, held for the whole of a
    change by its thread, while readers go on; ``reading``, or ``writing``, which excludes each
    other; and ``touching``, for as long as data is in between two states. Up to ``MAX_READERS``
    threads read at once; the others wait, as more than cores would.
    """

    def renew(self) -> None:
        self._change: _RLock = threading.RLock()
        self._gate: _RLock = threading.RLock()
        self._places: tuple[_RLock, ...] = tuple(threading.RLock() for _ in range(MAX_READERS))
        self.touching: _RLock = threading.RLock()

    def changing(self) -> AbstractContextManager[object]:
        """Return the lock that one thread at a time holds to change something.

        Raises:
            ConfigError: this thread changes or reads already.
        """
        if self._change._is_owned() or self._place()._is_owned():
            raise _used_within()
        return self._change

    def reading(self) -> AbstractContextManager[object]:
        """Wait for writers, then return the lock to hold by ``with`` while reading. Reentrant.

        Raises:
            ConfigError: this thread is writing.
        """
        if self._gate._is_owned() or self.touching._is_owned():
            raise _used_within()
        place = self._place()
        if not place._is_owned():
            with self._gate:  # held by a writer that waits or writes
                pass
        return place

    def writing(self, call: Callable[[], None]) -> None:
        """Make a call while no thread reads. The caller holds ``changing``."""
        with self._gate:
            _holding((*self._places, self.touching), 0, call)

    def _place(self) -> _RLock:
        # Threads that start one after the other have numbers that follow each other.
        return self._places[threading.get_native_id() % MAX_READERS]


def _holding(locks: Sequence[_RLock], first: int, call: Callable[[], None]) -> None:
    """Call while holding all locks from ``first`` on; an exit stack would be written in Python."""
    if first == len(locks):
        call()
        return
    with locks[first]:
        _holding(locks, first + 1, call)


def _used_within() -> ConfigError:
    return ConfigError(
        "an index used from within its own change or search",
        where="index",
        found="a call from code that runs inside one: a comparison, a finaliser, a signal handler",
        valid="a search inside a search; anything else before or after it",
        hint="take a note in that code, and use the index once the call has returned",
    )


_forking = threading.local()


def _before_fork() -> None:
    touching = [lock.touching for lock in living() if isinstance(lock, IndexLock)]
    _forking.held = [lock for lock in touching if not lock._is_owned()]
    for lock in _forking.held:
        lock.acquire()


def _after_in_parent() -> None:
    try:
        _release_held()
    finally:  # also where it was interrupted
        _release_held()


def _release_held() -> None:
    for lock in getattr(_forking, "held", ()):
        if lock._is_owned():
            lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent)
