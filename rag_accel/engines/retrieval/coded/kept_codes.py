"""Codes of an index, made in the background and again after it has changed."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

from rag_accel.clock import Clock
from rag_accel.engines.retrieval.coded.codes import CodedVectors
from rag_accel.engines.retrieval.coded.encoder import CodedVectorsEncoder
from rag_accel.engines.retrieval.index.contents import IndexView
from rag_accel.engines.retrieval.index.store import DocumentIndex
from rag_accel.engines.retrieval.vectors.ivf import IvfVectors
from rag_accel.engines.retrieval.vectors.row_places import MOST_LABELS
from rag_accel.engines.retrieval.vectors.vectors import thread_count

ENCODED_AT_ONCE = 1 << 19  # numbers for which a change of the index may have to wait: about 5 ms
REST = 3.0  # pause after each read, in times its length: searches and other work go on meanwhile
QUIET = 1.0  # times the whole encoding took: how long an index must not change before the next

_logger = logging.getLogger(__name__)

LABEL_BYTES = 8 * (1 + MOST_LABELS)  # of each vector: its label and its place


@dataclass(frozen=True, slots=True)
class _State:
    """The identity of one state of an index."""

    version: int
    vectors: IvfVectors

    def is_of(self, view: IndexView) -> bool:
        return self.version == view.version and self.vectors is view.vectors


class KeptCodes:
    """The codes of the present state of an index, or none.

    ``codes`` and ``want`` are called on one thread. A background thread encodes the index in short
    reads on one core and rests three times as long as it works, so that searches and changes go
    on. It gives up if the index changes. The next encoding begins once the index has not changed
    for as long as encoding takes, so an index that changes all the time costs nothing.

    Args:
        index: the index to encode.
        clock: measures encoding, and the time since the last change.
        max_bytes: an index whose codes would need more gets none.
    """

    def __init__(self, index: DocumentIndex, clock: Clock, max_bytes: int) -> None:
        self._index = index
        self._clock = clock
        self._max_bytes = max_bytes
        self._kept: tuple[_State, CodedVectors] | None = None
        self._latest: _State | None = None
        self._latest_since_s = 0.0
        self._took_s = 0.0
        self._is_broken = False
        self._worker: threading.Thread | None = None
        self._closing = threading.Event()

    def codes(self, view: IndexView) -> CodedVectors | None:
        """Return the codes of exactly this state of the index, None if there are none."""
        kept = self._kept
        if kept is None:
            return None
        if kept[0].is_of(view):
            return kept[1]
        self._kept = None  # they are not needed again
        return None

    def want(self, view: IndexView) -> None:
        """Request codes; the background thread makes them when it is time."""
        vectors = view.vectors
        if self._is_broken or self._closing.is_set() or not isinstance(vectors, IvfVectors):
            return
        if len(vectors) * (vectors.dimension + LABEL_BYTES) > self._max_bytes:
            return
        now = self._clock.now()
        if self._latest is None or not self._latest.is_of(view):
            self._latest, self._latest_since_s = _State(view.version, vectors), now
        is_making = self._worker is not None and self._worker.is_alive()
        has_rested = now - self._latest_since_s >= QUIET * self._took_s
        if is_making or not has_rested:
            return
        self._worker = threading.Thread(
            target=self._make, args=(self._latest,), name="rag-accel-encode", daemon=True
        )
        self._worker.start()

    def wait(self) -> None:
        """Wait until the codes that are being made are there or given up."""
        if self._worker is not None:
            self._worker.join()

    def close(self) -> None:
        """Stop making codes and forget them; there will be none any more."""
        self._closing.set()
        self.wait()
        self._kept = None

    def _make(self, state: _State) -> None:
        started = self._clock.now()
        try:
            with thread_count(1):
                codes = self._encoded(state)
        except Exception:  # no memory: searching goes on without codes
            self._is_broken = True
            _logger.warning("no codes of an index", exc_info=True)
            return
        self._took_s = self._clock.now() - started
        if codes is not None and not self._closing.is_set():
            self._kept = state, codes

    def _encoded(self, state: _State) -> CodedVectors | None:
        """Return the codes; None if the index has changed meanwhile."""
        encoder: CodedVectorsEncoder | None = None
        count = max(1, ENCODED_AT_ONCE // self._index.spec.dimension)
        while not (encoder and encoder.is_done):
            started = self._clock.now()
            with self._index.reading():
                if not state.is_of(self._index.view()):
                    return None
                encoder = encoder or CodedVectorsEncoder(state.vectors)
                encoder.take(count)
            if self._closing.wait(REST * (self._clock.now() - started)):
                return None
        return encoder.codes()
