"""Live with threads of a library that neither the end of a process nor a fork knows of."""

from __future__ import annotations

import atexit
import ctypes
import threading
from collections.abc import Callable

#: Longest wait at the end of the process, in seconds.
EXIT_WAIT_S = 10.0


class BackgroundTask:
    """Run ``call`` in a thread that the end of the process waits for, but not for long.

    What it raises is its own to report.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._thread = threading.Thread(target=self._run, name="rag-accel-compile", daemon=True)

    def start(self) -> None:
        """Start it, once.

        Raises:
            RuntimeError: if the process cannot have another thread.
        """
        # A daemon inside native code at the end of the interpreter would bring it down.
        atexit.register(self.wait, EXIT_WAIT_S)
        try:
            self._thread.start()
        except RuntimeError:
            atexit.unregister(self.wait)
            raise

    def wait(self, timeout_s: float) -> None:
        """Wait until it has ended."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._call()
        finally:
            self._call = _nothing  # its owner may hold this task: they would keep each other
            atexit.unregister(self.wait)


def _nothing() -> None:
    """Stand for what has been done."""


def never_free(obj: object) -> None:
    """Keep an object until the process ends, even past the end of the interpreter."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(obj))
