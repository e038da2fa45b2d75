"""The slack of early stops: a conformal quantile of gaps, checked by a binomial bound."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

import numpy as np

LEAST_OBSERVED = 200  # searches read in full before any is stopped
MOST_OBSERVED = 1024  # of which gaps are kept, the newest
CHECKED_OF = 32  # one search of so many is read in full although it could be stopped
MOST_CHECKED = 256  # whose outcomes are kept, the newest
CHANCE = 0.001  # of turning a stop off that keeps its share


class Calibration:
    """Gaps of searches read in full, and the slack that they allow.

    Args:
        share: of searches whose results the stop may not change, above 0.5 and below 1.
        gaps: noted before, at least 0.
        checked: outcomes of comparisons before.

    Raises:
        TypeError or ValueError: gaps are no such numbers.
    """

    def __init__(
        self, share: float, gaps: Iterable[float] = (), checked: Iterable[bool] = ()
    ) -> None:
        self._share = share
        least = math.ceil(share / (1 - share))  # below, the quantile does not exist
        self._least = max(LEAST_OBSERVED, least)
        self.gaps = deque(map(float, gaps), max(MOST_OBSERVED, least))
        self.checked = deque(map(bool, checked), MOST_CHECKED)
        if not all(math.isfinite(gap) and gap >= 0 for gap in self.gaps):
            raise ValueError("a gap that is negative or not finite")
        self._slack: float | None = None
        self._turn = 0
        #: vectors that stopped searches have read, of those in the clusters of ``nprobe``
        self.num_read = self.num_vectors = 0

    @property
    def slack(self) -> float | None:
        """Return how much farther than the k-th best a centroid may lie; None while it learns."""
        count = len(self.gaps)
        if self._slack is None and count >= self._least:
            rank = min(count, math.ceil((count + 1) * self._share))
            self._slack = float(np.partition(np.asarray(self.gaps), rank - 1)[rank - 1])
        return self._slack

    def is_turn_to_check(self) -> bool:
        """Count a search that could be stopped; tell whether it is to be read in full."""
        self._turn += 1
        return self._turn % CHECKED_OF == 0

    def observe(self, gap: float) -> None:
        """Note the gap of a search that was read in full."""
        self.gaps.append(gap)
        self._slack = None

    def check(self, is_equal: bool) -> None:
        """Note a comparison; forget everything if too few are equal to be chance."""
        self.checked.append(is_equal)
        missed = len(self.checked) - sum(self.checked)
        if not is_equal and chance_of(missed, len(self.checked), 1 - self._share) < CHANCE:
            self.gaps.clear()
            self.checked.clear()
            self._slack, self.num_read, self.num_vectors = None, 0, 0


def chance_of(missed: int, count: int, probability: float) -> float:
    """Return the probability of ``missed`` or more of ``count`` events of this probability."""
    terms = (
        math.comb(count, hits) * probability**hits * (1 - probability) ** (count - hits)
        for hits in range(missed)
    )
    return 1 - math.fsum(terms)
