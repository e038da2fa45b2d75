"""Let many threads read or one thread write."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager


class ReadWriteLock:
    """Share among readers, exclude for a writer; a waiting writer goes before new readers.

    Not reentrant: a thread that reads must not read or write again before it is done.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num_readers = 0
        self._num_waiting_writers = 0
        self._is_writing = False

    @contextmanager
    def reading(self) -> Generator[None]:
        """Hold the lock together with other readers."""
        with self._changed:
            while self._is_writing or self._num_waiting_writers:
                self._changed.wait()
            self._num_readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._num_readers -= 1
                if not self._num_readers:
                    self._changed.notify_all()

    @contextmanager
    def writing(self) -> Generator[None]:
        """Hold the lock alone."""
        with self._changed:
            self._num_waiting_writers += 1
            try:
                while self._is_writing or self._num_readers:
                    self._changed.wait()
                self._is_writing = True
            finally:
                self._num_waiting_writers -= 1
        try:
            yield
        finally:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
