"""The size of a forward by the time it may take, learned from the forwards before it."""

from __future__ import annotations

from rag_accel.engines.llm.local.schedule import LEAST_CHUNK

_WEIGHT = 0.5  # of the last forward against all before it


class Pace:
    """Rows computed per second.

    Only forwards of some size are learned from: the time of those that only decode hardly depends
    on their rows.

    Args:
        most_rows: of a forward.
        most_s: seconds a forward may take, about.
    """

    def __init__(self, most_rows: int, most_s: float) -> None:
        self._most_rows = most_rows
        self._most_s = most_s
        self._rows_per_s: float | None = None

    def rows(self, left_s: float) -> int:
        """Return how many rows end within ``left_s`` seconds, and never more than allowed."""
        if self._rows_per_s is None:
            return self._most_rows
        fitting = int(self._rows_per_s * min(self._most_s, left_s))
        return min(self._most_rows, max(LEAST_CHUNK, fitting))

    def ran(self, rows: int, seconds: float) -> None:
        """Learn from a forward."""
        if rows < LEAST_CHUNK or seconds <= 0:
            return
        old, new = self._rows_per_s, rows / seconds
        self._rows_per_s = new if old is None else (1 - _WEIGHT) * old + _WEIGHT * new
