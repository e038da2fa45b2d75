"""Locks that are free again in a forked child.

In a forked child only the thread that forked goes on; a lock that another thread held there would
be held for ever. So each owner of locks replaces them in the child.
"""

from __future__ import annotations

import threading
import weakref
from contextlib import AbstractContextManager

from rag_accel.system.forks import at_fork


class ForkedAnew:
    """An owner of locks that are made at the beginning and again in a forked child."""

    def __init__(self) -> None:
        self.renew()
        _living.add(weakref.ref(self, _living.discard))

    def renew(self) -> None:
        """Put new free locks in the place of all."""
        raise NotImplementedError


class RenewedLock(ForkedAnew):
    """A reentrant lock that is free in a forked child: ``with renewed.lock: ...``."""

    lock: AbstractContextManager[object]

    def renew(self) -> None:
        self.lock = threading.RLock()


# Not a weak set, whose Python code an interrupt may meet when an object goes: it would be lost.
_living: set[weakref.ref[ForkedAnew]] = set()


def living() -> list[ForkedAnew]:
    """Return the owners of locks that are in use."""
    references = tuple(_living)  # at once: other threads make and drop locks meanwhile
    return [lock for reference in references if (lock := reference()) is not None]


def _renew_in_child() -> None:
    for lock in living():
        lock.renew()


at_fork(after_in_child=_renew_in_child)
