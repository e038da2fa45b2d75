"""Learn how many threads serve a step best: all that are granted, or one.

A parallel step waits for its slowest thread. Where the cores are also busy with the program's own
threads, which no ledger sees, a second thread can make a small step many times slower; on idle
cores it makes a large one faster. So both are tried, per engine and size of step, and the better
one is kept; the other is tried again, ever more rarely as long as it loses.
"""

from __future__ import annotations

from dataclasses import dataclass, field

FIRST_PATIENCE = 64
LAST_PATIENCE = 4096
#: Steps with either number before one is kept, unless one is clearly better at once.
FIRST_STEPS = 3
CLEARLY = 1.4
#: The first step of all may load or lay out what it needs; it does not count once there is another.
UNTYPICAL_STEPS = 1
VERY_CLEARLY = 4.0


@dataclass(slots=True)
class Pace:
    """Follow the steps of one size class of one engine."""

    #: running mean of seconds per unit of cost, by number of threads
    seconds: dict[int, float] = field(default_factory=dict[int, float])
    #: steps that were seen, by number of threads
    steps: dict[int, int] = field(default_factory=dict[int, int])
    #: steps since the losing number was tried last
    since_trial: int = 0
    #: steps after which it is tried again
    patience: int = FIRST_PATIENCE

    def choose(self, most: int) -> int:
        """Return how many of at most ``most`` threads the next step should use."""
        if most <= 1 or most not in self.seconds:
            return most
        if 1 not in self.seconds:
            return 1
        best, other = (most, 1) if self.seconds[most] <= self.seconds[1] else (1, most)
        may_be_untypical = other == most and self.steps.get(most, 0) <= UNTYPICAL_STEPS
        clear = VERY_CLEARLY if may_be_untypical else CLEARLY
        if self.seconds[other] < clear * self.seconds[best]:
            fewer = min((most, 1), key=lambda threads: self.steps.get(threads, 0))
            if self.steps.get(fewer, 0) < FIRST_STEPS:
                return fewer
        return other if self.since_trial >= self.patience else best

    def learn(self, threads: int, most: int, cost: float, duration_s: float) -> None:
        """Take a step's duration into account; ``most`` is what ``choose`` was asked with.

        ``cost`` (above 0) is what the step computed, in a unit that takes about equally long.
        """
        each = duration_s / cost
        before = self.seconds.get(threads)
        is_trial = self.since_trial >= self.patience
        seen = self.steps[threads] = self.steps.get(threads, 0) + 1
        # What a trial finds may have changed altogether since the last one.
        weight = 1 if is_trial or seen <= 1 + UNTYPICAL_STEPS else min(seen - UNTYPICAL_STEPS, 8)
        self.seconds[threads] = each if before is None else before + (each - before) / weight
        self.since_trial += 1
        if is_trial:
            rival = self.seconds.get(1 if threads == most else most, each)
            lost = self.seconds[threads] >= rival
            self.patience = min(4 * self.patience, LAST_PATIENCE) if lost else FIRST_PATIENCE
            self.since_trial = 0


def size_class(items: int) -> int:
    """Return the class of a step's size: one per power of two."""
    return items.bit_length()
