"""Names met in a database, each with a number of its own."""

from __future__ import annotations

import threading

from rag_accel.engines.knowledge.protocol import Ids


class SharedNames:
    """Names and their ids, which count from 0 in the order in which names were first met.

    Any thread may ask for an id: a name keeps the one that it got first, and no two share one.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._ids: dict[str, int] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._names)

    def id(self, name: str) -> int:
        """Return the id of a name, a new one for a new name."""
        found = self._ids.get(name)
        if found is not None:
            return found
        with self._lock:
            found = self._ids.get(name)
            if found is None:
                # The name first: whoever finds the id, without the lock, finds its name too.
                found = len(self._names)
                self._names.append(name)
                self._ids[name] = found
            return found

    def names(self, ids: Ids) -> list[str]:
        """Return the names of ids."""
        return [self._names[place] for place in ids.tolist()]
