"""The size of a forward by the time it may take, learned from the forwards before it."""

from __future__ import annotations

import math

from rag_accel.engines.llm.local.schedule import LEAST_CHUNK

#: How many times as long a forward may take that holds up no decoding.
ALONE = 4
_WEIGHT = 0.5  # of the last forward against all before it


class Pace:
    """Seconds of a forward: those it takes for however few rows, and those of each row.

    A forward reads all weights. That part is learned from forwards that only decode, whose time
    hardly depends on their rows, and the rows' from those of some size.

    Args:
        most_rows: of a forward.
        most_s: seconds a forward may take, about.
    """

    def __init__(self, most_rows: int, most_s: float) -> None:
        self._most_rows = most_rows
        self._most_s = most_s
        self._least_s: float | None = None
        self._row_s: float | None = None

    def rows(self, *, decodes: bool) -> int:
        """Return how many rows a forward may have, beside sequences that decode or alone.

        Where nothing decodes, there is nothing that a long forward holds up but an interrupt, since
        prompts are computed in the order they came in.

        What is left of a step's time has no part in it. A prompt cut into pieces for steps that are
        shorter than the least forward takes several times as long, and the work that such steps are
        to let in waits longer for it.
        """
        if self._row_s is None:
            return self._most_rows
        most_s = self._most_s if decodes else ALONE * self._most_s
        fitting = int((most_s - (self._least_s or 0.0)) / self._row_s)
        return min(self._most_rows, max(LEAST_CHUNK, fitting))

    def seconds(self, rows: int) -> float:
        """Return how long it takes to compute so many rows of a prompt, in forwards of its own.

        Before anything was learned, as if a row took one second and nothing else counted.
        """
        if self._row_s is None:
            return float(rows)
        return rows * self._row_s + math.ceil(rows / self.rows(decodes=False)) * (
            self._least_s or 0.0
        )

    def ran(self, rows: int, seconds: float) -> None:
        """Learn from a forward."""
        if rows < LEAST_CHUNK:
            self._least_s = _mean(self._least_s, seconds)
        elif (of_rows := seconds - (self._least_s or 0.0)) > 0:
            self._row_s = _mean(self._row_s, of_rows / rows)


def _mean(old: float | None, new: float) -> float:
    return new if old is None else (1 - _WEIGHT) * old + _WEIGHT * new
