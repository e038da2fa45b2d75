"""Divergence of distributions over tokens from those of full attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import torch


@dataclass(frozen=True, slots=True)
class Divergence:
    """Divergence over one prompt's answer, whose tokens full attention has chosen.

    Args:
        kl_first: Kullback-Leibler divergence from full attention of the first token, in nats.
        kl_mean: the mean over tokens.
        top1: share of the tokens that are the most probable ones here, too.
    """

    kl_first: float
    kl_mean: float
    top1: float


def divergence(full: torch.Tensor, other: torch.Tensor) -> Divergence:
    """Compare logits ``[token, vocabulary]`` with those of full attention."""
    exact, near = full.double().log_softmax(-1), other.double().log_softmax(-1)
    apart = (exact.exp() * (exact - near)).sum(-1)
    same = full.argmax(-1) == other.argmax(-1)
    return Divergence(float(apart[0]), float(apart.mean()), float(same.double().mean()))


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error; the error of a single value is 0."""
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return fmean(values), error
