"""The step-time tables of the emulated accelerator and the arithmetic on them.

Every coefficient is modelled from the arithmetic in its source line; none was measured on a device.
Nothing here keeps state, sleeps or knows what a prompt is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
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
        label: origin of the figures; printed with every result.
        sources: where each coefficient comes from, by field name.
    """

    name: str
    base_ms: float
    per_running_ms: float
    per_1k_context_ms: float
    prefill_tokens_per_s: float
    chunk_tokens: int = 512
    max_sequences: int = 256
    label: str = MODELLED
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


def max_decode_tokens_per_s(table: DeviceTable, context_tokens: float = 0.0) -> float:
    """Return the tokens per second of a full batch whose sequences hold ``context_tokens`` each."""
    total = round(table.max_sequences * context_tokens)
    return table.max_sequences / step_time_s(table, table.max_sequences, total, 0)


def replicated(table: DeviceTable, count: int) -> DeviceTable:
    """Return ``count`` such devices behind a balancer that shares all work evenly among them.

    Raises:
        ConfigError: for fewer than one.
    """
    if count < 1:
        raise ConfigError("bad number of devices", found=count, valid="at least 1")
    return replace(
        table,
        name=f"{count} x {table.name}",
        per_running_ms=table.per_running_ms / count,
        per_1k_context_ms=table.per_1k_context_ms / count,
        prefill_tokens_per_s=table.prefill_tokens_per_s * count,
        chunk_tokens=table.chunk_tokens * count,
        max_sequences=table.max_sequences * count,
    )


def find_table(name: str) -> DeviceTable:
    """Return a committed table; raises ConfigError on an unknown name."""
    if name not in TABLES:
        raise ConfigError(
            "unknown emulated device", where="table", found=repr(name), valid=", ".join(TABLES)
        )
    return TABLES[name]


def _check_coefficient(table: str, name: str, value: float) -> None:
    optional = name in ("per_running_ms", "per_1k_context_ms")
    if not math.isfinite(value) or value < 0 or (value == 0 and not optional):
        raise ConfigError(
            "bad coefficient of an emulated device",
            where=f"{table}.{name}",
            found=repr(value),
            valid="a finite number " + (">= 0" if optional else "> 0"),
        )


H100_LIKE_8B = DeviceTable(
    name="h100_like_8b",
    base_ms=8.0,
    per_running_ms=0.06,
    per_1k_context_ms=0.04,
    prefill_tokens_per_s=20_000,
    sources=MappingProxyType(
        {
            "base_ms": "16 GB of bf16 weights (8e9 parameters) at 80 % of 3.35 TB/s = 6.0 ms; "
            "2.0 ms assumed for launches, sampling and host work",
            "per_running_ms": "16 GFLOP per token at the 990 TFLOP/s bf16 peak = 0.016 ms; "
            "0.044 ms assumed for sampling and bookkeeping of one sequence",
            "per_1k_context_ms": "32 layers x 8 KV heads x 128 x 2 (K, V) x 2 bytes = 128 KiB per "
            "token; 131 MB per 1k tokens at 3.35 TB/s = 0.039 ms",
            "prefill_tokens_per_s": "16 GFLOP per token x 20k = 320 TFLOP/s: a third of the peak",
            "chunk_tokens": "usual chunked-prefill size of serving engines",
            "max_sequences": "usual default of serving engines",
        }
    ),
)

FAST_FP8 = DeviceTable(
    name="fast_fp8",
    base_ms=5.0,
    per_running_ms=0.03,
    per_1k_context_ms=0.02,
    prefill_tokens_per_s=40_000,
    sources=MappingProxyType(
        {
            "base_ms": "8 GB of fp8 weights at 60 % of 4.8 TB/s = 2.8 ms; 2.2 ms assumed for "
            "launches, sampling and host work",
            "per_running_ms": "half of h100_like_8b: half the FLOP time, half the bookkeeping",
            "per_1k_context_ms": "fp8 KV, 64 KiB per token; 66 MB per 1k tokens at 70 % of "
            "4.8 TB/s = 0.020 ms",
            "prefill_tokens_per_s": "16 GFLOP per token x 40k = 640 TFLOP/s: a third of the "
            "1979 TFLOP/s fp8 peak",
            "chunk_tokens": "usual chunked-prefill size of serving engines",
            "max_sequences": "usual default of serving engines",
        }
    ),
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
            "0.022 ms assumed for sampling and bookkeeping of one sequence, as in fast_fp8",
            "per_1k_context_ms": "16 layers x 8 KV heads x 64 x 2 (K, V) x 2 bytes = 32 KiB per "
            "token; 33 MB per 1k tokens at 3.35 TB/s = 0.010 ms",
            "prefill_tokens_per_s": "2.5 GFLOP per token x 130k = 325 TFLOP/s: a third of the peak",
            "chunk_tokens": "usual chunked-prefill size of serving engines",
            "max_sequences": "usual default of serving engines",
        }
    ),
)

TABLES: Mapping[str, DeviceTable] = MappingProxyType(
    {table.name: table for table in (H100_LIKE_8B, FAST_FP8, H100_LIKE_1B)}
)
