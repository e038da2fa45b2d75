"""The step-time table of the emulated accelerator and the arithmetic on it.

Every coefficient is modelled from the arithmetic in its source line; none was measured on a device.
Nothing here keeps state, sleeps or knows what a prompt is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType

from rag_accel.errors import ConfigError

MODELLED = "modelled, not measured"


@dataclass(frozen=True, slots=True)
class DeviceTable:
    """The figures of an accelerator that decodes one token per running sequence and step.

    Args:
        name: how tables of results name it.
        base_ms: time of a step whatever it contains: weights read once, launches.
        per_running_ms: added by each sequence that decodes in the step.
        per_1k_context_ms: added by every 1000 tokens those sequences hold.
        prefill_tokens_per_s: rate at which prompt tokens are read.
        chunk_tokens: most prompt tokens one step reads (chunked prefill).
        max_sequences: most sequences that are prefilled or decoded at once.
        sources: where each coefficient comes from, by field name.
    """

    name: str
    base_ms: float
    per_running_ms: float
    per_1k_context_ms: float
    prefill_tokens_per_s: float
    chunk_tokens: int = 512
    max_sequences: int = 256
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for spec in fields(self):
            value = getattr(self, spec.name)
            if isinstance(value, (int, float)):
                _check_coefficient(self.name, spec.name, value)


def step_time_s(
    table: DeviceTable, running: int, context_tokens: int, prefill_tokens: int
) -> float:
    """Return the seconds of one step.

    Args:
        table: the device.
        running: sequences that decode one token each in this step.
        context_tokens: tokens held by those sequences together.
        prefill_tokens: prompt tokens read in this step.
    """
    decode_ms = (
        table.base_ms
        + table.per_running_ms * running
        + table.per_1k_context_ms * context_tokens / 1000
    )
    return decode_ms / 1000 + prefill_tokens / table.prefill_tokens_per_s


def _check_coefficient(table: str, name: str, value: float) -> None:
    optional = name in ("per_running_ms", "per_1k_context_ms")
    if not math.isfinite(value) or value < 0 or (value == 0 and not optional):
        raise ConfigError(
            "bad coefficient of an emulated device",
            where=f"{table}.{name}",
            found=repr(value),
            valid="a finite number " + (">= 0" if optional else "> 0"),
        )


H100_LIKE_1B = DeviceTable(
    name="h100_like_1b",
    base_ms=2.0,
    per_running_ms=0.025,
    per_1k_context_ms=0.01,
    prefill_tokens_per_s=130_000,
    sources=MappingProxyType(
        {
            "base_ms": "2.5 GB of bf16 weights (1.24e9 parameters) at 80 % of 3.35 TB/s = 0.93 ms; "
            "1.1 ms assumed for launches, sampling and host work",
            "per_running_ms": "2.5 GFLOP per token at the 990 TFLOP/s bf16 peak = 0.003 ms; "
            "0.022 ms assumed for sampling and bookkeeping of one sequence",
            "per_1k_context_ms": "16 layers x 8 KV heads x 64 x 2 (K, V) x 2 bytes = 32 KiB per "
            "token; 33 MB per 1k tokens at 3.35 TB/s = 0.010 ms",
            "prefill_tokens_per_s": "2.5 GFLOP per token x 130k = 325 TFLOP/s: a third of the peak",
            "chunk_tokens": "usual chunked-prefill size of serving engines",
            "max_sequences": "usual default of serving engines",
        }
    ),
)
