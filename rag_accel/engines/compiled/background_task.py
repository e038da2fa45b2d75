"""Threads of a library that neither the end of a process nor a fork knows of."""

from __future__ import annotations

import atexit
import ctypes
import threading
from collections.abc import Callable

from rag_accel.engines.compiled.compile_process import end_all

#: Longest wait at the end of the process, in seconds: for one call of native code. Conversions run
#: in processes that are killed then, and between two calls a task looks whether it is to stop.
EXIT_WAIT_S = 10.0


class BackgroundTask:
    """A thread that runs ``call``, and that the end of the process waits for, but not for long.

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
        # A daemon that comes back from C++ after the interpreter has ended is unwound through it,
        # which aborts the process.
        atexit.register(self._end)
        try:
            self._thread.start()
        except RuntimeError:
            atexit.unregister(self._end)
            raise

    def wait(self, timeout_s: float) -> None:
        """Wait until it has ended."""
        self._thread.join(timeout_s)

    def _end(self) -> None:
        end_all()
        self.wait(EXIT_WAIT_S)

    def _run(self) -> None:
        try:
            self._call()
        finally:
            self._call = _nothing  # its owner may hold this task: they would keep each other
            atexit.unregister(self._end)


def _nothing() -> None:
    """Do nothing, in place of a call that has run."""


def never_free(obj: object) -> None:
    """Keep an object until the process ends, even past the end of the interpreter."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(obj))
