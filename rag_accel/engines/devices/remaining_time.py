"""Predicted remaining time of requests after an embedding, learned from their later ones."""

from __future__ import annotations

from collections import OrderedDict

from rag_accel.engines.devices.latency_fit import FORGETTING

MOST_REQUESTS = 1024
"""Requests whose last embedding is remembered; older ones teach nothing."""


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
