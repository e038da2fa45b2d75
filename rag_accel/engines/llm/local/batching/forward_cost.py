"""The size of a forward by the time it may take, learned from the forwards before it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

from rag_accel.engines.llm.local.batching.schedule import LEAST_CHUNK

#: How many times as long a forward may take that holds up no decoding, and how many times as many
#: rows it may have where there is nothing else to compute.
ALONE = 4
#: Rows up to which a forward takes about as long as one of a single row.
FEW_ROWS = 16
#: Forwards of each size that count.
RECENT = 16


class ForwardCost:
    """Seconds of a forward: those it takes for however few rows, and those of each row.

    A forward reads all weights. That part is learned from forwards of few rows, which only decode,
    and the rows' from large ones: of a small forward, what is left beside the weights is noise. Of
    the last forwards' times the lower quartile counts, since other work on the machine makes a
    forward longer and nothing makes it shorter.

    Args:
        most_rows: of a forward, unless a prompt is alone.
        most_s: seconds a forward may take, about.
    """

    def __init__(self, most_rows: int, most_s: float) -> None:
        self._most_rows = most_rows
        self._most_s = most_s
        self._small: deque[float] = deque(maxlen=RECENT)
        self._medium: deque[tuple[int, float]] = deque(maxlen=RECENT)
        self._large: deque[tuple[int, float]] = deque(maxlen=RECENT)
        self._least_s = 0.0
        #: by large forwards; until there is one, a prompt's time is told by those of medium size
        self._row_s: float | None = None
        self._medium_row_s: float | None = None

    def rows(self, *, decodes: bool, is_alone: bool = False) -> int:
        """Return the most rows of a forward, with sequences that decode or without.

        Where nothing decodes, there is nothing that a long forward holds up but an interrupt, since
        prompts are computed in the order they came in. A prompt that is alone is cut by time only,
        up to ``ALONE`` times the rows, which bound the memory of the forward: each piece reads all
        weights again, and in bfloat16, 800 tokens take up to a tenth longer in two than in one.
        Whoever comes meanwhile waits no longer than where nothing decodes. Still larger forwards
        showed no gain: 4,900 tokens took no less time as a whole than in pieces of 1,024.

        What is left of a step's time has no part in it. A prompt cut into pieces for steps that are
        shorter than the least forward takes several times as long, and the work that such steps are
        to let in waits longer for it.

        Args:
            decodes: whether a completion is under way that a forward holds up.
            is_alone: whether there is one sequence and no other.
        """
        if self._row_s is None:
            return self._most_rows
        most_s = self._most_s if decodes else ALONE * self._most_s
        most_rows = ALONE * self._most_rows if is_alone and not decodes else self._most_rows
        fitting = int((most_s - self._least_s) / self._row_s)
        return min(most_rows, max(LEAST_CHUNK, fitting))

    def seconds(self, rows: int) -> float:
        """Return how long it takes to compute so many rows of a prompt, in forwards of its own.

        Before anything was learned, as if a row took one second and nothing else counted.
        """
        row_s = self._medium_row_s if self._row_s is None else self._row_s
        if row_s is None:
            return float(rows)
        return rows * row_s + math.ceil(rows / self.rows(decodes=False)) * self._least_s

    def ran(self, rows: int, seconds: float) -> None:
        if rows >= min(LEAST_CHUNK, self._most_rows):
            self._large.append((rows, seconds))
        elif rows >= FEW_ROWS:
            self._medium.append((rows, seconds))
        else:
            self._small.append(seconds)
            self._least_s = _lower_quartile(self._small)
        self._row_s = self._cost(self._large, self._row_s)
        self._medium_row_s = self._cost(self._medium, self._medium_row_s)

    def _cost(self, forwards: Iterable[tuple[int, float]], known: float | None) -> float | None:
        """Return the seconds of a row; those known where no forward took more than the least."""
        costs = [(seconds - self._least_s) / rows for rows, seconds in forwards]
        positive = [row_s for row_s in costs if row_s > 0]
        return _lower_quartile(positive) if positive else known


def _lower_quartile(values: Iterable[float]) -> float:
    """Return the value that a quarter of these, or the least one, do not exceed."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 4]
