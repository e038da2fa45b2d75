"""A base of policies that order states by a priority, leaves of their trees first."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod

Priority = tuple[float, ...]

#: Stale entries of the heap that are tolerated whatever its size.
_SLACK = 64


class PriorityPolicy(ABC):
    """The leaf of lowest priority first, at an amortised cost of O(log n) for each change.

    Only leaves have an entry in the heap. Its priority there is that of the time when it was
    pushed: a lower bound, because priorities rise unless ``_lowered`` is called. A victim's entry
    is brought up to date before it is believed, so a use costs nothing until its state comes up.
    Of equal priorities the one that was pushed first goes first.
    """

    def __init__(self) -> None:
        self._parents: dict[bytes, bytes | None] = {}
        self._children: dict[bytes, set[bytes]] = {}
        self._heap: list[tuple[Priority, int, bytes]] = []
        #: the number of the only entry of the heap that counts, by key
        self._entries: dict[bytes, int] = {}
        self._num_pushed = 0

    def __len__(self) -> int:
        return len(self._parents)

    def __contains__(self, key: bytes) -> bool:
        return key in self._parents

    def is_leaf(self, key: object) -> bool:
        """Tell whether anything is the key of a kept state that has none behind it."""
        return isinstance(key, bytes) and key in self._parents and key not in self._children

    @abstractmethod
    def _priority(self, key: bytes) -> Priority:
        """Return the present priority of a kept state."""

    def added(self, key: bytes, nbytes: int, parent: bytes | None = None) -> None:
        assert key not in self._parents, f"a kept state is added again: {key.hex()}"
        self._parents[key] = parent
        if parent is not None:
            assert parent in self._parents, f"a state is added without its parent: {key.hex()}"
            self._children.setdefault(parent, set()).add(key)
        self._push(key)

    def used(self, key: bytes) -> None:
        assert key in self._parents, f"a state is used that is not kept: {key.hex()}"

    def removed(self, key: bytes) -> None:
        parent = self._parents.pop(key)
        self._entries.pop(key, None)
        for child in self._children.pop(key, ()):
            self._parents[child] = None
        if parent is not None:
            siblings = self._children[parent]
            siblings.remove(key)
            if not siblings:
                del self._children[parent]
                self._push(parent)
        if len(self._heap) > 2 * len(self._parents) + _SLACK:
            self._reorder()

    def victim(self) -> bytes:
        """Return the key of the leaf of lowest priority."""
        while True:
            known, number, key = self._heap[0]
            if self._entries.get(key) != number:
                heapq.heappop(self._heap)
            elif key in self._children:
                # Pushed again when its last child is removed.
                heapq.heappop(self._heap)
                del self._entries[key]
            elif (priority := self._priority(key)) != known:
                heapq.heapreplace(self._heap, (priority, number, key))
            else:
                return key

    def _lowered(self, key: bytes) -> None:
        """Note that the priority of a key has fallen, if it is kept."""
        if key in self._entries:
            self._push(key)

    def _reorder(self) -> None:
        """Order everything again, after priorities changed in any way."""
        leaves = [key for key in self._parents if key not in self._children]
        # The entries' order settles ties, and it stays.
        leaves.sort(key=lambda key: self._entries[key])
        self._heap = [(self._priority(key), number, key) for number, key in enumerate(leaves)]
        heapq.heapify(self._heap)
        self._entries = {key: number for _, number, key in self._heap}
        self._num_pushed = len(leaves)

    def _push(self, key: bytes) -> None:
        self._entries[key] = self._num_pushed
        heapq.heappush(self._heap, (self._priority(key), self._num_pushed, key))
        self._num_pushed += 1
        if len(self._heap) > 2 * len(self._parents) + _SLACK:
            self._reorder()
