"""Learned costs of steps, and the bound on how long a step keeps newcomers waiting.

Cutting a stretch of work that takes ``t`` seconds into slices of ``b`` shortens the mean wait of
what arrives meanwhile from ``t / 2`` to ``b / 2``, and costs one more step border, ``beta``
seconds, per slice. The gain ``(t - b) / 2 - beta * t / b`` is greatest at ``b = sqrt(2 beta t)``
(HedraRAG section 4.2, Equation 1. Differs: the paper prints the cost with a plus sign, and with
that there is no greatest gain.)

Everything is learned from the times that events carry, so equal events give equal budgets.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, inf, sqrt

from rag_accel.engine_api.line_fit import LineFit

#: a caller of so many seconds ago may come back: callers think for a moment between two calls
COMPANY_S = 2.0
#: of what is not measured yet, so much of a batch is a fair first part
FIRST_SHARE = 8
#: of parts' sizes, relative to their mean and squared: with less they show no base
_VARIATION = 0.05


def running_mean(mean: float, value: float) -> float:
    """Move a mean an eighth of the way to a new value; 0 stands for no value yet."""
    return mean + (value - mean) / 8 if mean > 0 else value


@dataclass(slots=True)
class StepCosts:
    """Learned costs of one engine's steps; all in seconds, 0 before the first measurement."""

    #: mean time between deciding on a step and hearing of its end, beyond the step itself
    border_s: float = 0.0
    #: mean time that the engine spends on one primitive, its share of each step it was in
    service_s: float = 0.0
    #: mean time of one item of a primitive that was cut
    item_s: float = 0.0
    #: mean size of a primitive in binary digits; 0 before the first
    digits: float = 0.0
    #: seconds of parts by their size; a newer part counts 8/7 as much
    parts: LineFit = field(default_factory=lambda: LineFit(7 / 8))

    def learn_border(self, between_s: float, step_s: float) -> None:
        """Take the time from a step's command to its report, and the step's own, into account."""
        self.border_s = running_mean(self.border_s, max(0.0, between_s - step_s))

    def learn_service(self, served_s: float, items: int) -> None:
        self.service_s = running_mean(self.service_s, served_s)
        self.digits = running_mean(self.digits, float(items.bit_length()))

    def is_large(self, items: int) -> bool:
        """Tell whether a primitive is at least about twice as large as they usually are.

        Among equals none gains by a border: the oldest is served first either way.
        """
        return items.bit_length() >= self.digits + 1.0

    def learn_part(self, served_s: float, items: int) -> None:
        self.item_s = running_mean(self.item_s, served_s / max(1, items))
        self.parts.add(items, served_s)

    def beta_s(self, base_s: float) -> float:
        """Return what one more border costs.

        That is what is measured around a step, and what a step costs besides its items: as much as
        parts of different sizes have shown, and at least what the engine's profile says
        (``base_s``): a fit through few noisy points may well show nothing.
        """
        return self.border_s + max(base_s, self.parts.base_s(_VARIATION) or 0.0)


def best_budget_s(border_s: float, service_s: float) -> float:
    """Return the length of a slice that shortens waiting most, in seconds (Equation 1)."""
    return sqrt(2.0 * border_s * service_s)


def bounded_budget_s(border_s: float, service_s: float, least_s: float, most_s: float) -> float:
    """Return the best budget within bounds; the upper one if the service time is not known (0)."""
    if service_s <= 0:
        return most_s
    return min(max(best_budget_s(border_s, service_s), least_s), most_s)


def items_in(budget_s: float, item_s: float, most: int) -> int:
    """Return how many items of ``item_s`` seconds fit into a budget: from 1 to ``most``."""
    if item_s <= 0:
        return max(1, most // FIRST_SHARE)
    return max(1, int(min(most, budget_s / item_s)))


def even_part(left: int, most: int) -> int:
    """Return the size of the next of equal parts, each at most ``most`` of ``left`` items."""
    return ceil(left / ceil(left / most)) if left > most else left


#: Of an engine's idle time, so much is early work's, up to so many seconds. Other work's time
#: counts against it as much, so that an engine that is busy for half of the time has none.
IDLE_SHARE = 0.25
MOST_IDLE_S = 1.0


@dataclass(slots=True)
class IdleTime:
    """The seconds of early work that an engine's recent idle time pays for; negative if owed."""

    seconds: float = 0.0
    #: until when it is counted
    until: float = 0.0

    def at(self, now: float) -> float:
        """Return the seconds at a time up to which the engine has had no other work."""
        return min(MOST_IDLE_S, self.seconds + IDLE_SHARE * max(0.0, now - self.until))

    def paid_at(self) -> float:
        """Return when more than nothing is paid, if the engine has no other work until then."""
        return self.until + max(0.0, 1e-6 - self.seconds) / IDLE_SHARE

    def work(self, began: float, now: float) -> None:
        """Count a step of other work."""
        left_s = self.at(began)
        worked_s = IDLE_SHARE * max(0.0, now - began)
        self.seconds, self.until = max(min(0.0, left_s), left_s - worked_s), now

    def spend(self, now: float, seconds: float) -> None:
        """Count a step of early work, during which the engine was idle for all others."""
        self.seconds, self.until = max(-MOST_IDLE_S, self.at(now) - seconds), now


#: Fewer times than these show no least time, nor does any after so many seconds without another:
#: what is not begun is not measured, so that an old time would stand for ever.
FEWEST_TIMES = 8
LATELY_S = 60.0
#: a time counts among this many newer ones at least, and twice as many at most
_GENERATION = 32


@dataclass(slots=True)
class LeastTime:
    """The least time that works of one kind have taken lately, in seconds.

    It bounds from below how long another one takes: a mean would condemn half of them.
    """

    #: of this generation and of the one before: how many, the least, and the items of that work
    count: int = 0
    least: tuple[float, int] = (inf, 0)
    count_before: int = 0
    least_before: tuple[float, int] = (inf, 0)
    latest_at: float = -inf

    def add(self, took_s: float, items: int, now: float) -> None:
        """Take the time of a work that has just ended into account."""
        if now - self.latest_at > LATELY_S:
            self.count = self.count_before = 0
            self.least = self.least_before = (inf, 0)
        elif self.count == _GENERATION:
            self.count_before, self.least_before = self.count, self.least
            self.count, self.least = 0, (inf, 0)
        self.count += 1
        self.least = min(self.least, (took_s, items))
        self.latest_at = now

    def of(self, items: int, now: float) -> float | None:
        """Return the least time of a work of ``items`` items; None if too little is known.

        A work smaller than the quickest may be quicker still.
        """
        if self.count + self.count_before < FEWEST_TIMES or now - self.latest_at > LATELY_S:
            return None
        least_s, size = min(self.least, self.least_before)
        return least_s if items >= size else None


@dataclass(slots=True)
class ReturnRateLearner:
    """The learned share of callers that submit their next work at once after an engine's steps.

    Callers in a loop come back one by one within a fraction of a millisecond after a step. An
    engine that starts with the first of them leaves the others waiting for a whole step, so that
    batches fall to half of what is there. What came back so soon after the last steps is expected
    to come again.
    """

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
