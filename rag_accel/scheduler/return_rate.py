"""The share of callers that submit their next work at once after a step has ended theirs.

Callers in a loop come back one by one within a fraction of a millisecond after a step. An engine
that starts with the first of them leaves the others waiting for a whole step, so that batches fall
to half of what is there. What came back so soon after the last steps is expected to come again.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ReturnRateLearner:
    """The learned share of callers that come back soon after an engine's steps."""

    #: when the last step ended, with how many, and until when an arrival counts as soon
    ended: int = 0
    until: float = 0.0
    #: how many have come since
    arrived: int = 0
    #: how many came per one that ended; a running mean
    share: float = 0.0

    def step_ended(self, ended: int, now: float, window_s: float) -> None:
        """Learn from the arrivals after the previous step."""
        if self.ended:
            self.share += (min(1.0, self.arrived / self.ended) - self.share) / 4
        self.ended, self.until, self.arrived = ended, now + window_s, 0

    def note_arrival(self, now: float) -> None:
        """Count an arrival if it is soon."""
        if now <= self.until:
            self.arrived += 1

    def expected_by(self, now: float) -> float | None:
        """Return by when more are expected, ``None`` if all have come or the time is over."""
        missing = round(self.share * self.ended) > self.arrived
        return self.until if missing and now < self.until else None
