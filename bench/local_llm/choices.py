"""Options of our model that an arm is named after, and what lacks where there are none."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from bench.results import Row
from rag_accel.engines.llm.local.options import LocalOptions

TORCH, PAGED = "torch", "paged"


def runner_option(name: str) -> dict[str, Any] | str:
    """Return the option that chooses a runner, or why there is none."""
    return _option("runner", name)


def weights_option(name: str) -> dict[str, Any] | str:
    """Return the option that chooses the precision of weights, or why there is none."""
    return _option("weights", name)


def _option(name: str, value: str) -> dict[str, Any] | str:
    if name not in {each.name for each in fields(LocalOptions)}:
        return f"LocalLLM has no option {name}"
    return {name: value}


def missing_row(system: str, lacks: str) -> Row:
    """Return the row of an arm that cannot run here."""
    return Row(system, lacks, "missing", 1, None, 1)
