"""Predicted seconds of members' steps, by a line over tokens, and of requests after a step."""

from __future__ import annotations

from collections import OrderedDict, deque

from rag_accel.engine_api.line_fit import LineFit

FORGETTING = 15 / 16
"""The weight of all earlier steps after each new one; five steps then suffice to settle."""

MOST_REQUESTS = 1024
"""Requests whose last embedding is remembered; older ones teach nothing."""

_NUM_OVERRUNS = 40
_MOST_MARGIN = 1.0

_LEAST_VARIATION = 1e-6  # of sizes, relative to their mean and squared, for a slope to show


class LatencyFit:
    """Seconds of a step as ``alpha * tokens + beta``, both from 0.

    Args:
        alpha: first guess of the seconds a token.
        beta: first guess of the seconds a step costs by itself.
    """

    __slots__ = ("_points", "alpha", "beta", "num_steps")

    def __init__(self, alpha: float, beta: float) -> None:
        self.alpha = alpha
        self.beta = beta
        self.num_steps = 0
        self._points = LineFit(FORGETTING)

    def predict_s(self, tokens: float) -> float:
        """Return the predicted seconds of a step over ``tokens``."""
        return self.alpha * tokens + self.beta

    def add(self, tokens: float, seconds: float) -> None:
        """Learn from one step."""
        self._points.add(tokens, seconds)
        self.num_steps += 1
        line = self._points.line(_LEAST_VARIATION)
        if line is None:
            self._scale(self._points.mean_size, self._points.mean_s)
        else:
            self.alpha, self.beta = line.per_item_s, line.base_s

    def _scale(self, mean_x: float, mean_y: float) -> None:
        """Keep the shape of the line: steps of one size tell its height only."""
        expected = self.predict_s(mean_x)
        if expected > 0.0:
            self.alpha *= mean_y / expected
            self.beta *= mean_y / expected
        elif mean_x > 0.0:
            self.alpha = mean_y / mean_x


class MemberLines:
    """The line of a member's steps, and another of those with a neighbour on the same cores.

    Until the second has a step it is the first.
    """

    __slots__ = ("_overruns", "alone", "contended", "margin")

    def __init__(self, alpha: float, beta: float) -> None:
        self.alone = LatencyFit(alpha, beta)
        self.contended = LatencyFit(alpha, beta)
        #: by how much steps exceed what was predicted, relative to it: of 95 % of them, no more
        self.margin = 0.0
        self._overruns: deque[float] = deque(maxlen=_NUM_OVERRUNS)

    def predict_s(self, tokens: float, contended: bool) -> float:
        """Return the predicted seconds of a step over ``tokens``."""
        return self.line(contended).predict_s(tokens)

    def line(self, contended: bool) -> LatencyFit:
        return self.contended if contended and self.contended.num_steps else self.alone

    def add(self, tokens: float, seconds: float, contended: bool) -> None:
        """Learn from one step."""
        self._note(seconds, self.predict_s(tokens, contended))
        if contended and not self.contended.num_steps:
            self.contended.alpha, self.contended.beta = self.alone.alpha, self.alone.beta
        (self.contended if contended else self.alone).add(tokens, seconds)

    def _note(self, seconds: float, predicted_s: float) -> None:
        if predicted_s > 0.0:
            self._overruns.append(min(_MOST_MARGIN, max(0.0, seconds / predicted_s - 1.0)))
            self.margin = sorted(self._overruns)[int(0.95 * (len(self._overruns) - 1))]


class RemainingTime:
    """The learned seconds of a request from one level of depth to the next.

    Learned where a request embeds twice, from the end of the deeper work to the arrival of the
    shallower one.
    """

    __slots__ = ("_ended", "level_s")

    def __init__(self) -> None:
        #: seconds a level, 0 until a request has shown it
        self.level_s = 0.0
        self._ended: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def after(self, depth: int) -> float:
        """Return the seconds a request is expected to need after work of this depth."""
        return max(0, depth - 1) * self.level_s

    def arrived(self, request: str, depth: int, now: float) -> None:
        """Learn from the next work of a request."""
        last = self._ended.pop(request, None)
        if last is None or last[0] <= depth:
            return
        seen = max(0.0, now - last[1]) / (last[0] - depth)
        new = 1.0 - FORGETTING
        self.level_s = seen if self.level_s == 0.0 else self.level_s + new * (seen - self.level_s)

    def ended(self, request: str, depth: int, now: float) -> None:
        """Remember when a work of a request ended."""
        if depth <= 1:
            return
        self._ended[request] = (depth, now)
        self._ended.move_to_end(request)
        if len(self._ended) > MOST_REQUESTS:
            self._ended.popitem(last=False)
