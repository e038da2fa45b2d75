"""A thread that reads and writes states of texts, so that computing waits for no disk."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

from rag_accel.kv.disk import DiskStore
from rag_accel.kv.entry import ChunkLabel, KeyValues

_log = logging.getLogger("rag_accel.kv")

#: The most keys that are being loaded or have arrived and were not fetched.
MOST_WANTED = 256
#: The most bytes that wait to be written; states beyond are dropped.
MOST_UNWRITTEN = 1 << 28
#: The most hints that wait to be read, and keys that are to be read ahead; the latest count.
MOST_HINTS = 64
MOST_AHEAD = 256
#: Seconds without work after which the thread ends; the next work starts another.
IDLE_S = 5.0
#: Seconds that closing waits for the writes left.
CLOSING_S = 30.0


#: Keeps a state that was read ahead; returns False where there is no room for it.
KeepAhead = Callable[[bytes, KeyValues], bool]


@dataclass(slots=True)
class HintCounts:
    """Counts of the outcomes of hints.

    Args:
        loaded: states that were read ahead.
        dropped: hints and states that had no room.
        failed: hints that raised.
    """

    loaded: int = 0
    dropped: int = 0
    failed: int = 0


class Loader:
    """A queue of keys to load, and of states to prefetch and to write. Any thread may call it.

    Requested keys go first, in their order. Prefetches and writes take turns.

    Args:
        store: read and written by the loader's thread alone.
        keep_ahead: takes prefetched states, on the loader's thread; without it, hints are ignored.
    """

    def __init__(self, store: DiskStore, keep_ahead: KeepAhead | None = None) -> None:
        self._store = store
        self._keep_ahead = keep_ahead
        self.hints = HintCounts()
        self._hints: deque[Callable[[], Iterable[bytes]]] = deque()
        self._ahead: OrderedDict[bytes, None] = OrderedDict()
        self._is_ahead = self._was_ahead = False
        #: whether the state being read may have been purged meanwhile
        self.is_stale = False
        self._is_writing = False
        self._jobs: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._wanted: OrderedDict[bytes, None] = OrderedDict()
        self._under_way: bytes | None = None
        self._arrived: dict[bytes, KeyValues | None] = {}
        self._unwritten: deque[tuple[bytes, KeyValues, ChunkLabel]] = deque()
        self._unwritten_bytes = 0
        #: states that were not written because too many waited
        self.dropped = 0
        self._thread: threading.Thread | None = None
        self._closed = False

    def prefetch(self, keys: Iterable[bytes]) -> None:
        """Load keys; those beyond ``MOST_WANTED`` are ignored."""
        with self._changed:
            for key in keys:
                self._ahead.pop(key, None)
                if key == self._under_way:
                    self._is_ahead = False
                count = len(self._wanted) + len(self._arrived)
                if not self._closed and not self._is_wanted(key) and count < MOST_WANTED:
                    self._wanted[key] = None
            self._go_on()

    def hint(self, keys: Callable[[], Iterable[bytes]]) -> None:
        """Read ahead the states of keys, which the loader's thread asks for. Returns at once.

        Of more than ``MOST_HINTS`` that wait, the oldest are forgotten.
        """
        with self._changed:
            if self._closed or self._keep_ahead is None:
                return
            if len(self._hints) >= MOST_HINTS:
                self._hints.popleft()
                self.hints.dropped += 1
            self._hints.append(keys)
            self._go_on()

    def is_wanted(self, key: bytes) -> bool:
        """Tell whether a key is being loaded, or has arrived and was not fetched."""
        with self._changed:
            return self._is_wanted(key)

    def fetch(self) -> list[tuple[bytes, KeyValues | None]]:
        """Return the keys read since the last call, each with its state or None."""
        with self._changed:
            arrived, self._arrived = self._arrived, {}
            return list(arrived.items())

    def purged(self) -> None:
        """Report arrived and unfinished reads as missing, and drop waiting writes."""
        with self._changed:
            self._arrived = dict.fromkeys(self._arrived)
            self.is_stale = self._under_way is not None
            is_writing = 1 if self._is_writing else 0
            while len(self._unwritten) > is_writing:
                _, state, _ = self._unwritten.pop()
                self._unwritten_bytes -= state.nbytes

    def first(self, job: Callable[[], None]) -> None:
        """Run a short job on the loader's thread before all else, also while it is closing.

        It is run here if the loader is closed.
        """
        with self._changed:
            is_closed = self._closed
            if not is_closed:
                self._jobs.append(job)
                self._go_on()
        if is_closed:
            _run_job(job)

    def wait(self, timeout_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._arrived or self._closed, timeout_s)

    def write(self, key: bytes, state: KeyValues, label: ChunkLabel) -> None:
        """Write a state a little later."""
        with self._changed:
            beyond = self._unwritten_bytes + state.nbytes > MOST_UNWRITTEN
            if self._closed or (beyond and self._unwritten):
                self.dropped += 1
                return
            self._unwritten.append((key, state, label))
            self._unwritten_bytes += state.nbytes
            self._go_on()

    def close(self) -> None:
        """Drop reads, finish waiting writes, and end the thread."""
        with self._changed:
            self._closed = True
            self._wanted.clear()
            self._arrived.clear()
            self._hints.clear()
            self._ahead.clear()
            thread = self._thread
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(CLOSING_S)

    def _is_wanted(self, key: bytes) -> bool:
        is_under_way = key == self._under_way and not self._is_ahead
        return is_under_way or key in self._wanted or key in self._arrived

    def _go_on(self) -> None:
        """Let a thread run while there is work."""
        self._changed.notify_all()
        if self._thread is None and self._waits():
            self._thread = threading.Thread(target=self._run, name="rag-accel-kv", daemon=True)
            self._thread.start()

    def _waits(self) -> bool:
        looks = self._wanted or self._ahead or self._hints
        return bool(looks or self._unwritten or self._jobs)

    def _run(self) -> None:
        while self._has_work():
            while self._jobs:
                _run_job(self._jobs.popleft())
            if not self._look() and not self._look_ahead():
                self._write_next()

    def _has_work(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._waits() or self._closed, IDLE_S)
            if self._waits():
                return True
            self._thread = None
            return False

    def _look(self) -> bool:
        with self._changed:
            if not self._wanted:
                return False
            key, _ = self._wanted.popitem(last=False)
            self._under_way, self._is_ahead = key, False
        self._report(key, self._found(key))
        return True

    def _found(self, key: bytes) -> KeyValues | None:
        try:
            return self._store.find(key)
        except Exception:  # whatever it is, the text is computed
            _log.exception("the state of a text could not be looked for")
            return None

    def _report(self, key: bytes, found: KeyValues | None) -> None:
        """Report the state of a key, unless it was only prefetched."""
        with self._changed:
            is_asked_for = not self._is_ahead
            if is_asked_for and not self._closed:
                self._arrived[key] = None if self.is_stale else found
            self._under_way, self._is_ahead, self.is_stale = None, False, False
            self._changed.notify_all()

    def _look_ahead(self) -> bool:
        """Read one state ahead, or a hint; return False where it is the turn of a write."""
        hint = key = None
        with self._changed:
            self._was_ahead = not (self._was_ahead and self._unwritten)
            if not self._was_ahead:
                return False
            if self._ahead:
                key, _ = self._ahead.popitem(last=False)
                self._under_way, self._is_ahead = key, True
            elif self._hints:
                hint = self._hints.popleft()
        if key is not None:
            self._load_ahead(key)
        elif hint is not None:
            self._read(hint)
        return key is not None or hint is not None

    def _load_ahead(self, key: bytes) -> None:
        found = self._found(key)
        with self._changed:
            is_to_be_kept = self._is_ahead and not self._closed
            keep_ahead = self._keep_ahead if is_to_be_kept else None
        # Before the report, so that a caller that looks in memory first finds it there.
        if keep_ahead is not None and found is not None:
            if keep_ahead(key, found):
                self.hints.loaded += 1
            else:  # nor is there room for those behind it
                with self._changed:
                    self._ahead.clear()
                self.hints.dropped += 1
        self._report(key, found)

    def _read(self, hint: Callable[[], Iterable[bytes]]) -> None:
        try:
            keys = list(islice(hint(), MOST_AHEAD))
        except Exception:  # whatever it is, its texts are loaded when they are requested
            _log.exception("a hint could not be read")
            self.hints.failed += 1
            return
        with self._changed:
            for key in keys:
                if not self._closed and not self._is_wanted(key):
                    self._ahead[key] = None

    def _write_next(self) -> None:
        with self._changed:
            if not self._unwritten:
                return
            key, state, label = self._unwritten[0]
            self._is_writing = True
        try:
            self._store.put(key, state, label)
        except Exception:  # whatever it is, the state is not kept
            _log.exception("the state of a text could not be kept")
        with self._changed:
            self._is_writing = False
            self._unwritten.popleft()
            self._unwritten_bytes -= state.nbytes


def _run_job(job: Callable[[], None]) -> None:
    try:
        job()
    except Exception:  # later work goes on
        _log.exception("texts could not be forgotten")
