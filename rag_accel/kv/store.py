"""Texts whose attention state is kept, bounded in bytes, the least lately used given up first."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from rag_accel.kv.entry import LaneState


class ChunkStore(Protocol):
    """What keeps the state of texts by their keys. Called by the engine's worker only."""

    @property
    def held_bytes(self) -> int:
        """Return the bytes of what is kept."""
        ...

    def find(self, key: bytes) -> LaneState | None:
        """Return what is kept under a key, and count it as used."""
        ...

    def put(self, key: bytes, state: LaneState) -> bool:
        """Keep a state, if it is admitted; what is kept under its key already stays."""
        ...

    def clear(self) -> None:
        """Forget everything."""
        ...


class HostStore:
    """States in memory of this process.

    Args:
        limit_bytes: most bytes of what is kept; a state larger than this is not.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._states: OrderedDict[bytes, LaneState] = OrderedDict()

    @property
    def held_bytes(self) -> int:
        """Return the bytes of what is kept."""
        return self._held_bytes

    def __len__(self) -> int:
        return len(self._states)

    def find(self, key: bytes) -> LaneState | None:
        """Return what is kept under a key, and count it as used."""
        state = self._states.get(key)
        if state is not None:
            self._states.move_to_end(key)
        return state

    def put(self, key: bytes, state: LaneState) -> bool:
        """Keep a state, if it is admitted; what is kept under its key already stays."""
        if key in self._states:
            return True
        if state.nbytes > self._limit_bytes:
            return False
        self._states[key] = state
        self._held_bytes += state.nbytes
        while self._held_bytes > self._limit_bytes:
            _, gone = self._states.popitem(last=False)
            self._held_bytes -= gone.nbytes
        return True

    def clear(self) -> None:
        """Forget everything."""
        self._states.clear()
        self._held_bytes = 0
