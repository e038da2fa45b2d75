"""Children of tests, from the outside: whether they run, and a wait for their end."""

from __future__ import annotations

import threading
import time
from pathlib import Path


def is_there(pid: int) -> bool:
    """Tell whether a process runs; one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter while it is reaped
        return False


def await_end(pid: int) -> None:
    """Return once a process has ended."""
    until = time.monotonic() + 20
    while is_there(pid):
        assert time.monotonic() < until, "the child is still there"
        threading.Event().wait(0.01)
