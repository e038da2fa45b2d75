"""Keep micro-batches under way, in as many streams as suits those who wait.

A compiled model computes without the thread that started it. A micro-batch on all threads is done
soonest, which is what few callers wait for; one thread each gets most done, which is what a crowd
waits for. One more stands in line, so that no stream stands still while callers are given vectors.
What torch computes is never under way: it is started when it is asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from rag_accel.engines.embedding.encoder import Piece
from rag_accel.engines.embedding.vectors import Vector
from rag_accel.engines.pending import PendingWork

#: Fewest waiting tokens for which one more micro-batch is put in line behind several streams, and
#: texts for each stream. Measured for MiniLM on two cores.
IN_LINE_FROM = 160
TEXTS_PER_STREAM = 4
#: Looks after which a crowd is forgotten.
_LATELY = 8
#: How often a step looks for newcomers and for other streams, in seconds.
_LOOK_S = 0.001


class UnderWay:
    """Start micro-batches and tell which one to take next. Used on one thread but ``interrupt``.

    Args:
        pending: whose items they hold.
        cut: cuts what waits into micro-batches for so many streams.
        max_threads: most threads of a step.
    """

    def __init__(
        self,
        pending: PendingWork[str, Vector],
        cut: Callable[[int], Iterable[Piece]],
        max_threads: int,
    ) -> None:
        self._pending = pending
        self._cut = cut
        self._max_threads = max_threads
        self._ready: deque[Piece] = deque()
        self._running: deque[Piece] = deque()
        self._crowds: deque[int] = deque(maxlen=_LATELY)
        self._streams = 1
        self._is_interrupted = False

    def __len__(self) -> int:
        """Return how many were started and not taken."""
        return len(self._running)

    def fill(self, threads: int) -> None:
        """Have a micro-batch under way in each stream and one more, as far as it can overlap."""
        self._drop_forgotten()
        self._crowds.append(self._pending.num_items(TEXTS_PER_STREAM * threads))
        self._streams = max(1, min(threads, max(self._crowds) // TEXTS_PER_STREAM))
        while len(self._running) < self._most(threads):
            if not self._ready and self._is_worth_it():
                self._ready.extend(self._cut(self._streams))
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
                    piece.start(max(1, threads // self._streams))
                self._running.append(piece)
                return True
        return False

    def take(self, threads: int) -> Piece | None:
        """Remove and return a micro-batch that has ended; None if newcomers can start before.

        With one in line the oldest will do: no stream stands still until it has ended.
        """
        while len(self._running) <= self._streams and not self._running[0].is_done(0.0):
            for place, piece in enumerate(self._running):
                if place and piece.is_done(0.0):
                    del self._running[place]
                    return piece
            if self._is_interrupted and self._has_room(threads):
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
        return self._streams + (threads >= self._max_threads)

    def _has_room(self, threads: int) -> bool:
        """Tell whether a newcomer alone would be started."""
        is_single = self._streams == 1
        return len(self._running) < (self._most(threads) if is_single else self._streams)

    def _is_worth_it(self) -> bool:
        is_free = self._streams == 1 or len(self._running) < self._streams
        return is_free or self._pending.waiting_cost(IN_LINE_FROM) >= IN_LINE_FROM
