"""Keep micro-batches under way, so that a compiled model never stands still.

A compiled model computes without the thread that started it. One micro-batch runs on all threads
and one more stands in line, while callers are given vectors and ask for more. What torch computes
is never under way: it is started when it is asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from rag_accel.engines.embedding.encoder import Piece
from rag_accel.engines.embedding.vectors import Vector
from rag_accel.engines.pending import PendingWork

#: How often a step looks for newcomers, in seconds.
_LOOK_S = 0.001


class UnderWay:
    """Start micro-batches and tell which one to take next. Used on one thread but ``interrupt``.

    Args:
        pending: whose items they hold.
        cut: cuts what waits into micro-batches.
        max_threads: most threads of a step.
    """

    def __init__(
        self,
        pending: PendingWork[str, Vector],
        cut: Callable[[], Iterable[Piece]],
        max_threads: int,
    ) -> None:
        self._pending = pending
        self._cut = cut
        self._max_threads = max_threads
        self._ready: deque[Piece] = deque()
        self._running: deque[Piece] = deque()
        self._is_interrupted = False

    def __len__(self) -> int:
        """Return how many were started and not taken."""
        return len(self._running)

    def fill(self, threads: int) -> None:
        """Have a micro-batch under way and one more in line, as far as it can overlap."""
        self._drop_forgotten()
        while len(self._running) < self._most(threads):
            if not self._ready:
                self._ready.extend(self._cut())
            if not self.start_next(threads):
                return

    def start_next(self, threads: int) -> bool:
        """Start one more micro-batch, if there is one that may be."""
        while self._ready:
            if self._running and not self._ready[0].prepared.overlaps:
                return False
            piece = self._ready.popleft()
            piece.slots = [slot for slot in piece.slots if self._pending.is_alive(slot)]
            if piece.slots:
                if piece.prepared.overlaps:
                    piece.start(threads)
                self._running.append(piece)
                return True
        return False

    def take(self, threads: int) -> Piece | None:
        """Remove and return the oldest; None if it computes and newcomers can start meanwhile."""
        while len(self._running) < self._most(threads) and not self._running[0].is_done(0.0):
            if self._is_interrupted:
                self._is_interrupted = False
                return None
            self._running[0].is_done(_LOOK_S)
        return self._running.popleft()

    def interrupt(self) -> None:
        """Let ``take`` return for newcomers; from any thread."""
        self._is_interrupted = True

    def put_back(self) -> None:
        """Let newcomers take part in what torch has not begun to compute."""
        for pieces in (self._ready, self._running):
            while pieces and not pieces[-1].prepared.overlaps:
                self._pending.put_back(pieces.pop().slots)

    def clear(self) -> None:
        """Forget all."""
        self._ready.clear()
        self._running.clear()

    def _drop_forgotten(self) -> None:
        while self._running and not any(map(self._pending.is_alive, self._running[0].slots)):
            self._running.popleft()

    def _most(self, threads: int) -> int:
        # What is in line computes after the step, on cores that others may have been granted.
        return 1 + (threads >= self._max_threads)
