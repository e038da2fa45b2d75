"""The one accelerator that all objects share unless they are given another."""

from __future__ import annotations

import threading

from rag_accel.accelerator.accelerator import Accelerator
from rag_accel.system.forks import at_fork

_lock = threading.Lock()
_default: Accelerator | None = None


def default_accelerator() -> Accelerator:
    """Return the process default, made on first use and again after ``shutdown()`` or a fork."""
    global _default
    current = _default
    if current is not None and not current.closed:
        return current
    with _lock:
        if _default is None or _default.closed:
            _default = Accelerator()
        return _default


def shutdown() -> None:
    """Close the process default; the next use makes a fresh one."""
    global _default
    with _lock:
        current, _default = _default, None
    if current is not None:
        current.close()


def _forget_in_child() -> None:
    # The parent's threads do not exist here and its locks may be held by them.
    global _default, _lock
    _default, _lock = None, threading.Lock()


at_fork(after_in_child=_forget_in_child)
