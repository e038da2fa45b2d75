"""Know which ``activate()`` blocks are open, wherever in the process a call comes from."""

from __future__ import annotations

import os
import threading
from contextvars import ContextVar

from rag_accel.accelerator import Accelerator, default_accelerator


class Activation:
    """Be one open block; ``accelerator=None`` stands for the process default of the moment."""

    def __init__(self, accelerator: Accelerator | None) -> None:
        self.own = accelerator
        self.outer = _here.get()
        self.is_open = False

    @property
    def accelerator(self) -> Accelerator:
        """Return the accelerator that schedules what this block covers."""
        return self.own or default_accelerator()

    def open(self) -> None:
        """Cover this context, and whatever context belongs to no block of its own."""
        with _lock:
            self.is_open = True
            _open.append(self)
        _here.set(self)

    def close(self) -> None:
        """Cover nothing any more."""
        with _lock:
            self.is_open = False
            _open.remove(self)
        # No token: a block may end in another context than it began in, as a server's start and
        # stop hooks do. Contexts that still name this block look past it.
        if _here.get() is self:
            _here.set(self.outer)


_lock = threading.Lock()


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)  # who held it there before is gone
_open: list[Activation] = []
_here: ContextVar[Activation | None] = ContextVar("rag_accel_activation", default=None)


def activated() -> Accelerator | None:
    """Return the accelerator of the innermost open block around this context.

    A context made beside every block, such as a thread's or a server's task's, belongs to the
    block opened last. In a forked child, an explicit accelerator of the parent covers nothing.
    """
    if not _open:
        return None
    block = _here.get()
    while block is not None and not block.is_open:
        block = block.outer
    if block is None:
        block = next(iter(_open[-1:]), None)
    if block is None or (block.own is not None and block.own.forked):
        return None
    return block.accelerator


def open_blocks() -> tuple[Activation, ...]:
    """Return the blocks open now, oldest first."""
    with _lock:
        return tuple(_open)
