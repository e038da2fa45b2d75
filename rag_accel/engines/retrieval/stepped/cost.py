"""Learn what reading clusters costs while it happens: seconds as a line over vectors compared."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from statistics import median

_WINDOW = 32  # observations kept
_MIN_PER_VECTOR_S = 1e-12


class ScanCost:
    """Predict ``base_s + per_vector_s * vectors`` (HedraRAG 4.2: clusters differ in size).

    Both are medians over the latest observations, so that scans which were held up by another
    process bend nothing. They are observed apart, as a line through scans of about one size, which
    is what a time budget leads to, would say little about either.

    Args:
        base_s: first guess of what a scan costs besides its vectors.
        per_vector_s: first guess of what one vector adds.
    """

    def __init__(self, base_s: float, per_vector_s: float) -> None:
        self.base_s = base_s
        self.per_vector_s = per_vector_s
        self._bases: deque[float] = deque(maxlen=_WINDOW)
        self._rates: deque[float] = deque(maxlen=_WINDOW)

    def predict_s(self, vectors: float) -> float:
        """Return the predicted seconds of comparing with ``vectors`` vectors."""
        return self.base_s + self.per_vector_s * vectors

    def vectors_in(self, seconds: float) -> float:
        """Return how many vectors can be compared in this time; 0 if not even the base fits."""
        return max(0.0, seconds - self.base_s) / self.per_vector_s

    def observe(self, vectors: int, scan_s: float, base_s: float) -> None:
        """Take the seconds that one scan spent on its vectors and besides them.

        A scan without vectors, or on a clock that stood still, says nothing and is ignored.
        """
        if vectors <= 0 or scan_s <= 0.0:
            return
        self._bases.append(max(0.0, base_s))
        self._rates.append(scan_s / vectors)
        self.base_s = median(self._bases)
        self.per_vector_s = max(_MIN_PER_VECTOR_S, median(self._rates))


class ScanCosts:
    """Hold what scans of several kinds cost.

    Args:
        per_vector_s: first guess for every kind.
    """

    def __init__(self, per_vector_s: float) -> None:
        self._per_vector_s = per_vector_s
        self._costs: dict[Hashable, ScanCost] = {}

    def of(self, kind: Hashable, base_s: float) -> ScanCost:
        """Return the cost of a kind; ``base_s`` is the first guess of its base."""
        if kind not in self._costs:
            self._costs[kind] = ScanCost(base_s, self._per_vector_s)
        return self._costs[kind]
