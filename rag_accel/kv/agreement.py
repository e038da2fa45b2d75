"""Results of checks of other ways to compute a model: whether their answers are near enough."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rag_accel.kv.verdicts import VerdictKind


@dataclass(frozen=True, slots=True)
class AgreementResult:
    """The result of a check of another way to compute a model.

    Args:
        model: identifies the weights, and how they were rounded if they were.
        name: of the model.
        target: the requested agreement.
        passed: whether it was met, less two standard errors.
        top1: the share of tokens whose most probable one is that of the plain computation.
        top1_error: its standard error.
        kl: Kullback-Leibler divergence from the plain computation a token, in nats.
        prompts: how many were compared.
        tokens: most tokens of an answer.
        written: seconds since 1970.
        versions: of the libraries that computed, by name.
    """

    model: str
    name: str
    target: float
    passed: bool
    top1: float
    top1_error: float
    kl: float
    prompts: int
    tokens: int
    written: float
    versions: Mapping[str, str]

    @classmethod
    def parse(cls, values: dict[str, Any]) -> AgreementResult:
        """Return the result with these fields.

        Raises:
            TypeError: there are others, or they are of other types.
            ValueError: a number is out of range.
        """
        result = cls(**values)
        numbers = (result.target, result.top1, result.top1_error, result.kl)
        if not all(map(math.isfinite, numbers)) or not isinstance(result.passed, bool):
            raise ValueError("numbers out of range")
        return result


#: Checks of int8 weights, and of relation paths that are computed as trees.
WEIGHTS_CHECKS = VerdictKind("rag_accel.weights_check", 1, b"weights check ", AgreementResult.parse)
PATHS_CHECKS = VerdictKind("rag_accel.paths_check", 1, b"paths check ", AgreementResult.parse)
