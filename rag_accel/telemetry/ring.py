"""Keep the newest items in bounded memory, appended from any thread without a lock."""

from __future__ import annotations

import itertools
from typing import Generic, TypeVar

from rag_accel.errors import ConfigError

T = TypeVar("T")


class RingBuffer(Generic[T]):
    """Hold the last ``capacity`` items; older ones are overwritten and counted.

    ``append`` takes no lock, so that it may run inside a finalizer or a signal handler that
    interrupted another ``append`` of the same thread.

    Raises:
        ConfigError: if ``capacity`` is below one.
    """

    __slots__ = ("_capacity", "_slots", "_tickets")

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ConfigError(
                "a ring buffer holds at least one item", found=capacity, valid="from 1"
            )
        self._capacity = capacity
        self._tickets = itertools.count()
        # Each slot pairs an item with its ticket. A reader sorts by ticket, so it needs no
        # agreement with the writers about where the newest item is.
        self._slots: list[tuple[int, T] | None] = [None] * capacity

    def append(self, item: T) -> None:
        """Add an item, overwriting the oldest if the buffer is full."""
        ticket = next(self._tickets)
        self._slots[ticket % self._capacity] = (ticket, item)

    def snapshot(self) -> tuple[T, ...]:
        """Return the items held, oldest first. Nothing is removed."""
        return tuple(item for _, item in self._ordered())

    @property
    def total(self) -> int:
        """Return how many items were ever appended."""
        return 1 + max((ticket for ticket, _ in self._held()), default=-1)

    @property
    def dropped(self) -> int:
        """Return how many items were overwritten."""
        return max(0, self.total - self._capacity)

    def __len__(self) -> int:
        return len(self._ordered())

    def _held(self) -> list[tuple[int, T]]:
        # list() of a list is one operation of the interpreter; no writer gets in between.
        return [slot for slot in list(self._slots) if slot is not None]

    def _ordered(self) -> list[tuple[int, T]]:
        held = sorted(self._held(), key=_ticket)
        # A writer that slept a whole lap between its two lines leaves an item too old to be here.
        oldest = held[-1][0] - self._capacity if held else -1
        return [slot for slot in held if slot[0] > oldest]


def _ticket(slot: tuple[int, object]) -> int:
    return slot[0]
