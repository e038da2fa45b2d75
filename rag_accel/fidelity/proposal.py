"""The ratio that a check proposes, from the measurements of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rag_accel.fidelity.divergence import Divergence, mean_and_error

#: Recomputing so much or more saves too little to be proposed.
PROPOSED_BELOW = 0.5
#: Standard errors by which a target must be met.
ERRORS = 2.0


@dataclass(frozen=True, slots=True)
class RatioFidelity:
    """Fidelity of fused prompts of one ratio to computed ones: means over prompts.

    Args:
        ratio: the share of the texts' tokens that are computed again.
        top1: share of an answer's tokens that are the most probable ones here, too.
        top1_error: its standard error.
        kl: Kullback-Leibler divergence from full attention a token, in nats.
        kl_error: its standard error.
    """

    ratio: float
    top1: float
    top1_error: float
    kl: float
    kl_error: float

    @classmethod
    def of(cls, ratio: float, found: Sequence[Divergence]) -> RatioFidelity:
        """Return the means over prompts."""
        top1 = mean_and_error([each.top1 for each in found])
        return cls(ratio, *top1, *mean_and_error([each.kl_mean for each in found]))

    @property
    def least_top1(self) -> float:
        """Return the agreement less two standard errors."""
        return self.top1 - ERRORS * self.top1_error

    def __str__(self) -> str:
        top1 = f"{self.top1:.3f} +- {self.top1_error:.3f}"
        return f"{self.ratio:>10.0%}  {top1:<24}  {self.kl:.4f} +- {self.kl_error:.4f}"


def proposed_ratio(measured: Sequence[RatioFidelity], target: float) -> float | None:
    """Return the smallest ratio below 0.5 that meets a target of agreement; None for none.

    The mean less two standard errors must reach the target.
    """
    enough = (
        found.ratio
        for found in measured
        if found.ratio < PROPOSED_BELOW and found.least_top1 >= target
    )
    return min(enough, default=None)
