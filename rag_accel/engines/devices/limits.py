"""Limits of a device group for members that fail, fall silent and come back: pure."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import isfinite

from rag_accel.engines.devices.plan import MemberBatch
from rag_accel.errors import ConfigError

SILENT_TIMES = 4.0
"""A call is no silence before so many times its predicted seconds."""


@dataclass(frozen=True, slots=True)
class MemberLimits:
    """Limits of the members of a device group; all but ``compare_every_texts`` in seconds.

    Args:
        first_pause_s: until a member elsewhere that failed is probed; each further wait doubles.
        longest_pause_s: the longest such wait.
        probe_s: the longest that a probe takes, where the member's call can be interrupted.
        second_try_s: a step that exceeds its predicted time by as much again, and at least by this,
            is given to a free member too.
        silent_s: a call of a member elsewhere without an answer is given up so long after
            ``slo_s``, and four times its predicted time.
        silent_without_slo_s: the same without ``slo_s``.
        absent_s: how long work waits for a member while none answers, before it ends with an error.
        compare_every_s: after so much time a member elsewhere embeds a probe again, before its next
            step.
        compare_every_texts: after so many texts a call to a server holds a probe too, whose vector
            is compared before any of the others is used.

    Raises:
        ConfigError: a limit that is negative or not finite.
    """

    first_pause_s: float = 0.25
    longest_pause_s: float = 4.0
    probe_s: float = 10.0
    second_try_s: float = 0.5
    silent_s: float = 2.0
    silent_without_slo_s: float = 20.0
    absent_s: float = 2.0
    compare_every_s: float = 60.0
    compare_every_texts: float = 64

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (isfinite(value) and value >= 0.0):
                raise ConfigError(
                    "a limit of members is no number from 0",
                    where=f"MemberLimits({field.name}=)",
                    found=repr(value),
                    valid="a finite number, from 0",
                )

    def pause_s(self, probes: int) -> float:
        """Return how long a member waits for its next probe, after so many failed ones."""
        return min(self.longest_pause_s, self.first_pause_s * 2.0 ** min(probes, 64))

    def late_at(self, batch: MemberBatch) -> float:
        """Return from when on a step is late enough for a second member to try it."""
        return batch.began + batch.predicted_s + max(batch.predicted_s, self.second_try_s)

    def silent_at(self, batch: MemberBatch, slo_s: float | None, step_timeout_s: float) -> float:
        """Return when a call of a member elsewhere is given up."""
        after_s = self.silent_without_slo_s if slo_s is None else slo_s + self.silent_s
        return batch.began + min(step_timeout_s, SILENT_TIMES * batch.predicted_s + after_s)
