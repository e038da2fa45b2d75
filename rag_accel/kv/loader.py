"""A thread that reads and writes states of texts, so that what computes waits for no disk."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Protocol

from rag_accel.kv.entry import ChunkLabel, KeyValues

_log = logging.getLogger("rag_accel.kv")

#: The most keys that are looked for or have arrived and were not fetched.
MOST_WANTED = 256
#: The most bytes that wait to be written; what comes beyond is not kept.
MOST_UNWRITTEN = 1 << 28
#: Seconds without work after which the thread ends; the next work starts another.
IDLE_S = 5.0
#: Seconds that closing waits for what is still to be written.
CLOSING_S = 30.0


class SlowStore(Protocol):
    """What keeps states and takes long. Called by one thread."""

    def find(self, key: bytes) -> KeyValues | None:
        """Return what is kept under a key."""
        ...

    def put(self, key: bytes, state: KeyValues, label: ChunkLabel) -> bool:
        """Keep a state."""
        ...


class Loader:
    """A queue of keys to look for and of states to write. Any thread may call it.

    What is looked for goes before what is written, in the order it was asked for.

    Args:
        store: is read and written by the loader's thread alone.
    """

    def __init__(self, store: SlowStore) -> None:
        self._store = store
        self._changed = threading.Condition()
        self._wanted: OrderedDict[bytes, None] = OrderedDict()
        self._under_way: bytes | None = None
        self._arrived: dict[bytes, KeyValues | None] = {}
        self._unwritten: deque[tuple[bytes, KeyValues, ChunkLabel]] = deque()
        self._unwritten_bytes = 0
        self._dropped = 0
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def dropped(self) -> int:
        """Return the states that were not written because too many waited."""
        return self._dropped

    def want(self, keys: Iterable[bytes]) -> None:
        """Look for keys; those beyond ``MOST_WANTED`` are not looked for."""
        with self._changed:
            for key in keys:
                count = len(self._wanted) + len(self._arrived)
                if not self._closed and not self._is_wanted(key) and count < MOST_WANTED:
                    self._wanted[key] = None
            self._go_on()

    def is_wanted(self, key: bytes) -> bool:
        """Tell whether a key is looked for, or has arrived and was not fetched."""
        with self._changed:
            return self._is_wanted(key)

    def fetch(self) -> list[tuple[bytes, KeyValues | None]]:
        """Return what has arrived since the last call; None where there is no state."""
        with self._changed:
            arrived, self._arrived = self._arrived, {}
            return list(arrived.items())

    def wait(self, timeout_s: float) -> None:
        """Wait until something has arrived, for at most so long."""
        with self._changed:
            self._changed.wait_for(lambda: self._arrived or self._closed, timeout_s)

    def write(self, key: bytes, state: KeyValues, label: ChunkLabel) -> None:
        """Write a state a little later."""
        with self._changed:
            beyond = self._unwritten_bytes + state.nbytes > MOST_UNWRITTEN
            if self._closed or (beyond and self._unwritten):
                self._dropped += 1
                return
            self._unwritten.append((key, state, label))
            self._unwritten_bytes += state.nbytes
            self._go_on()

    def close(self) -> None:
        """Look for nothing more, write what waits, and end the thread."""
        with self._changed:
            self._closed = True
            self._wanted.clear()
            self._arrived.clear()
            thread = self._thread
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(CLOSING_S)

    def _is_wanted(self, key: bytes) -> bool:
        return key in self._wanted or key in self._arrived or key == self._under_way

    def _go_on(self) -> None:
        """Let a thread run while there is work."""
        self._changed.notify_all()
        if self._thread is None and (self._wanted or self._unwritten):
            self._thread = threading.Thread(target=self._run, name="rag-accel-kv", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while self._has_work():
            if not self._look():
                self._write_next()

    def _has_work(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._wanted or self._unwritten or self._closed, IDLE_S)
            if self._wanted or self._unwritten:
                return True
            self._thread = None
            return False

    def _look(self) -> bool:
        with self._changed:
            if not self._wanted:
                return False
            key, _ = self._wanted.popitem(last=False)
            self._under_way = key
        found = None
        try:
            found = self._store.find(key)
        except Exception:  # whatever it is, the text is computed
            _log.exception("the state of a text could not be looked for")
        with self._changed:
            self._under_way = None
            if not self._closed:
                self._arrived[key] = found
            self._changed.notify_all()
        return True

    def _write_next(self) -> None:
        with self._changed:
            key, state, label = self._unwritten[0]
        try:
            self._store.put(key, state, label)
        except Exception:  # whatever it is, the state is not kept
            _log.exception("the state of a text could not be kept")
        with self._changed:
            self._unwritten.popleft()
            self._unwritten_bytes -= state.nbytes
