"""A line of seconds over sizes, learned from steps."""

from __future__ import annotations

from rag_accel.engine_api.profile import LatencyModel


class LineFit:
    """Least squares of seconds over sizes, with earlier points fading.

    Args:
        keeps: the weight of all earlier points after each new one; 1 keeps them all.
    """

    __slots__ = ("_keeps", "_n", "_x", "_xx", "_xy", "_y")

    def __init__(self, keeps: float) -> None:
        self._keeps = keeps
        self._n = self._x = self._y = self._xx = self._xy = 0.0

    def add(self, size: float, seconds: float) -> None:
        """Learn from one point."""
        self._n = self._n * self._keeps + 1.0
        self._x = self._x * self._keeps + size
        self._y = self._y * self._keeps + seconds
        self._xx = self._xx * self._keeps + size * size
        self._xy = self._xy * self._keeps + size * seconds

    @property
    def mean_size(self) -> float:
        """Return the mean size of at least one point."""
        return self._x / self._n

    @property
    def mean_s(self) -> float:
        """Return the mean seconds of at least one point."""
        return self._y / self._n

    def base_s(self, variation: float) -> float | None:
        """Return the seconds at size 0, which may be below 0.

        Args:
            variation: of sizes relative to their mean, squared; with less there is no slope.
        """
        spread = self._spread(variation)
        return None if spread is None else (self._y * self._xx - self._x * self._xy) / spread

    def line(self, variation: float) -> LatencyModel | None:
        """Return the best line of which neither part is below 0; arguments as for ``base_s``.

        Where the best line of all breaks one bound, the best one within them lies on that bound: it
        is the constant, or goes through the origin.
        """
        spread = self._spread(variation)
        if spread is None:
            return None
        slope = (self._n * self._xy - self._x * self._y) / spread
        base = self.mean_s - slope * self.mean_size
        if slope < 0.0:
            return LatencyModel(max(0.0, self.mean_s), 0.0)
        if base < 0.0:
            return LatencyModel(0.0, max(0.0, self._xy / self._xx))
        return LatencyModel(base, slope)

    def _spread(self, variation: float) -> float | None:
        spread = self._n * self._xx - self._x * self._x
        return None if spread <= variation * self._x * self._x else spread
