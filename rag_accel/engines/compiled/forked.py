"""The end of OpenVINO's threads in forked children, which have none and can start none."""

from __future__ import annotations

import os
from typing import Any
from weakref import WeakSet

from rag_accel.engines.compiled.background_task import never_free
from rag_accel.engines.compiled.compile_process import CompileError

#: Why nothing is compiled in a forked child of a process that has compiled graphs.
FORKED = "this process was forked from one that has compiled models"


class _Process:
    """The state of this process."""

    def __init__(self) -> None:
        self.has_started = False
        self.is_orphaned = False
        #: what holds graphs that were compiled here
        self.holders: WeakSet[Any] = WeakSet()

    def note_fork(self) -> None:
        """Keep for ever, in a child, what would wait for threads that do not exist there."""
        self.is_orphaned = self.is_orphaned or self.has_started
        for holder in self.holders:
            never_free(holder)
        self.holders = WeakSet()


_process = _Process()
os.register_at_fork(after_in_child=_process.note_fork)


def note_start() -> None:
    """Note that a graph is compiled in this process now.

    Raises:
        CompileError: this process was forked from one that has compiled graphs.
    """
    if _process.is_orphaned:
        raise CompileError(FORKED)
    _process.has_started = True


def keep_past_fork(holder: object) -> None:
    """Have an object that holds compiled graphs never freed in forked children."""
    _process.holders.add(holder)
