"""Micro-batches of many requests, kept under way so that no model idles.

A compiled model computes without the thread that started it. One micro-batch runs on all threads
and one more stands in line, while callers are given vectors and ask for more. Torch computes in
helper threads where there are some, else in the thread that takes the result.

Where a model is called on one thread, one micro-batch runs on each granted thread, and never more
than there are requests: a program's own threads would do the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from rag_accel.engines.embedding.checked_vectors import checked_rows
from rag_accel.engines.embedding.prepared_texts import PreparedTexts
from rag_accel.engines.embedding.sentence_encoder import Role
from rag_accel.engines.helper_threads import HelperThreads
from rag_accel.engines.pending import PendingWork, Slot

ItemT = TypeVar("ItemT")
CallT = TypeVar("CallT", bound="BatchCall[Any]")

#: Seconds between two looks of a step for newcomers.
_LOOK_S = 0.001


class Encoder(Protocol):
    """A model, as an embedding engine uses it."""

    def same_batch(self, role: Role) -> Role:
        """Return the role whose batches this role can join."""
        ...

    def dimension(self, role: Role) -> int | None:
        """Return the components of a vector of this role, None where unknown."""
        ...

    def estimate(self, text: str) -> int:
        """Return a text's cost in the unit of the limits, at least 1."""
        ...

    def prepare(self, texts: Sequence[str], role: Role) -> PreparedTexts:
        """Make texts ready to run."""
        ...


class BatchCall(Generic[ItemT]):
    """One call of a model for some slots; it may compute without the thread that takes it."""

    slots: list[Slot[ItemT]]
    end: Callable[[], Any] | None = None

    @property
    def starts_itself(self) -> bool:
        """Tell whether the model computes on threads of its own."""
        return False

    @property
    def overlaps(self) -> bool:
        """Tell whether it computes, or will, without the thread that takes it."""
        return self.starts_itself or self.end is not None

    def start(self, threads: int, helpers: HelperThreads | None = None) -> None:
        """Let it compute; if that raises, ``take`` tries again and raises then.

        Args:
            threads: to compute on.
            helpers: compute what would otherwise be computed by the thread that takes it.
        """
        with suppress(Exception):
            end = self._begin(self.slots, threads)
            self.end = end if helpers is None or self.starts_itself else helpers.start(end)

    def is_done(self, timeout_s: float) -> bool:
        """Tell whether ``take`` need not wait, at the latest after so many seconds."""
        wait = getattr(self.end, "wait", None)
        try:
            return wait is None or wait(timeout_s)
        except Exception:  # it has ended badly: taking it says how
            return True

    def take(self, threads: int, slots: list[Slot[ItemT]]) -> Any:
        """Return the results of ``slots``; after a failure some are computed again."""
        end, self.end = self.end, None
        if end is None:
            return self._checked(self._begin(slots, threads)(), len(slots))
        found = self._checked(end(), len(self.slots))
        if len(slots) == len(self.slots):
            return found
        wanted = set(slots)
        return [row for slot, row in zip(self.slots, found, strict=True) if slot in wanted]

    def _begin(self, slots: list[Slot[ItemT]], threads: int) -> Callable[[], Any]:
        raise NotImplementedError

    def _checked(self, found: Any, count: int) -> Any:
        return found


@dataclass(slots=True, eq=False)
class Piece(BatchCall[str]):
    """One micro-batch of texts; ``rows`` are those of all slots that were prepared together."""

    role: Role
    prepared: PreparedTexts
    rows: dict[Slot[str], int]
    slots: list[Slot[str]]
    end: Callable[[], Any] | None = None

    @property
    def starts_itself(self) -> bool:
        return self.prepared.overlaps

    def _begin(self, slots: list[Slot[str]], threads: int) -> Callable[[], Any]:
        return self.prepared.start([self.rows[slot] for slot in slots], threads)

    def _checked(self, found: Any, count: int) -> Any:
        return checked_rows(found, count)


class MicroBatches(Generic[CallT]):
    """Micro-batches that have started, and the order in which to take them.

    Used on one thread but ``interrupt``.

    Args:
        pending: whose items they hold.
        cut: cuts what waits into micro-batches.
        max_threads: most threads of a step.
        helpers: compute micro-batches of one thread each; None where one micro-batch uses all.
    """

    def __init__(
        self,
        pending: PendingWork[Any, Any],
        cut: Callable[[], Iterable[CallT]],
        max_threads: int,
        helpers: HelperThreads | None = None,
    ) -> None:
        self._helpers = helpers
        self._pending = pending
        self._cut = cut
        self._max_threads = max_threads
        self._ready: deque[CallT] = deque()
        self._running: deque[CallT] = deque()
        self._is_interrupted = False

    def __len__(self) -> int:
        """Return the number of started micro-batches that were not taken."""
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
            is_free = len(self._running) < self.side_by_side(threads)
            helpers = self._helpers if threads > 1 and is_free else None
            overlaps = self._ready[0].starts_itself or helpers is not None
            if self._running and not overlaps:
                return False
            piece = self._ready.popleft()
            piece.slots = [slot for slot in piece.slots if self._pending.is_alive(slot)]
            if piece.slots:
                if overlaps:
                    piece.start(threads if self._helpers is None else 1, helpers)
                self._running.append(piece)
                return True
        return False

    def take(self, threads: int) -> CallT | None:
        """Remove and return the oldest; None if it computes and newcomers can start meanwhile.

        Of those that run side by side, the first that has ended takes the oldest's place.
        """
        if self._helpers is not None:
            return self._take_ended(threads)
        while len(self._running) < self._most(threads) and not self._running[0].is_done(0.0):
            if self._is_interrupted:
                self._is_interrupted = False
                return None
            self._running[0].is_done(_LOOK_S)
        return self._running.popleft()

    def take_rest(self, threads: int) -> Iterator[CallT]:
        """Take those that would go on after a step, on cores that others may have been granted."""
        if self._helpers is None or threads >= self._max_threads:
            return
        while self._running and self._running[0].overlaps:
            piece = self.take(threads)
            if piece is not None:
                yield piece

    def side_by_side(self, threads: int) -> int:
        """Return the number of micro-batches that may compute at the same time."""
        if self._helpers is None:
            return 1
        # What runs for work that was cancelled meanwhile keeps its core until it ends.
        forgotten = sum(not self._is_wanted(piece) for piece in self._running)
        return max(1, min(threads, len(self._pending) + forgotten))

    def interrupt(self) -> None:
        """Let ``take`` return for newcomers; from any thread."""
        self._is_interrupted = True

    def put_back(self) -> None:
        """Let newcomers take part in what torch has not begun to compute."""
        for pieces in (self._ready, self._running):
            while pieces and not pieces[-1].overlaps:
                self._pending.put_back(pieces.pop().slots)

    def close(self) -> None:
        """Forget all, once helpers have ended theirs."""
        self._ready.clear()
        self._running.clear()
        if self._helpers is not None:
            self._helpers.join()

    def _drop_forgotten(self) -> None:
        if self._helpers is not None:
            is_over = [not self._is_wanted(run) and run.is_done(0.0) for run in self._running]
            kept = (piece for piece, over in zip(self._running, is_over, strict=True) if not over)
            self._running = deque(kept)
            return
        while self._running and not self._is_wanted(self._running[0]):
            self._running.popleft()

    def _is_wanted(self, piece: CallT) -> bool:
        return any(map(self._pending.is_alive, piece.slots))

    def _take_ended(self, threads: int) -> CallT | None:
        while True:
            for piece in self._running:
                if piece.is_done(0.0):
                    self._running.remove(piece)
                    return piece
            has_room = len(self._running) <= threads >= self._max_threads  # one may be in line
            if self._is_interrupted and has_room:
                self._is_interrupted = False
                return None
            self._running[0].is_done(_LOOK_S)

    def _most(self, threads: int) -> int:
        if self._helpers is not None:
            side_by_side = self.side_by_side(threads)
            return side_by_side + (side_by_side == threads >= self._max_threads)
        # What is in line computes after the step, on cores that others may have been granted.
        return 1 + (threads >= self._max_threads)
