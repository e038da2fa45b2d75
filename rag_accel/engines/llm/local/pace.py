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

    @property
    def rows(self) -> int:
        """Return how many rows a forward may have.

        What is left of a step's time has no part in it. A forward reads all weights for however few
        rows: a prompt cut into pieces for steps that are shorter than that takes several times as
        long, and the work that such steps are to let in waits longer for it.
        """
        if self._rows_per_s is None:
            return self._most_rows
        return min(self._most_rows, max(LEAST_CHUNK, int(self._rows_per_s * self._most_s)))

    def ran(self, rows: int, seconds: float) -> None:
        """Learn from a forward."""
        if rows < LEAST_CHUNK or seconds <= 0:
            return
        old, new = self._rows_per_s, rows / seconds
        self._rows_per_s = new if old is None else (1 - _WEIGHT) * old + _WEIGHT * new
