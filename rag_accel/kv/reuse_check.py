"""Results of checks of ``kv_reuse="fused"`` by model, kept in a folder of states."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rag_accel.kv.verdicts import VerdictKind


@dataclass(frozen=True, slots=True)
class ReuseCheckResult:
    """The result of a check.

    Args:
        model: identifies the weights and how states are computed.
        name: of the model.
        target: the requested agreement.
        ratio: the smallest that meets it; None if fused does not pay on this model.
        top1: agreement at that ratio; at the largest one below 0.5, if none meets the target.
        top1_error: its standard error.
        prompts: how many were compared.
        tokens: most tokens of an answer.
        written: seconds since 1970.
        versions: of the libraries that computed, by name.
    """

    model: str
    name: str
    target: float
    ratio: float | None
    top1: float
    top1_error: float
    prompts: int
    tokens: int
    written: float
    versions: Mapping[str, str]

    def passes(self, ratio: float) -> bool:
        """Tell whether recomputing this share is enough."""
        return self.ratio is not None and self.ratio <= ratio

    @classmethod
    def parse(cls, values: dict[str, Any]) -> ReuseCheckResult:
        """Return the result with these fields.

        Raises:
            TypeError: there are others, or they are of other types.
            ValueError: a number is out of range.
        """
        result = cls(**values)
        numbers = (result.target, result.ratio or 0.0, result.top1, result.top1_error)
        if not all(map(math.isfinite, numbers)):
            raise ValueError("numbers out of range")
        return result


#: Its version rises with every change in the computation of fused prompts, to which old results do
#: not apply.
REUSE_CHECKS = VerdictKind("rag_accel.kv_check", 1, b"check ", ReuseCheckResult.parse)
