"""The step-time table: exact arithmetic, committed sources, named errors."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from bench.emulated.table import H100_LIKE_1B, step_time_s
from rag_accel.errors import ConfigError


@pytest.mark.parametrize(
    ("running", "context", "prefill", "expected_ms"),
    [
        (0, 0, 0, 2.0),
        (1, 0, 0, 2.025),
        (2, 1200, 520, 2 + 0.05 + 0.012 + 4),
        (256, 256_000, 0, 2 + 6.4 + 2.56),
    ],
)
def test_step_time_adds_base_running_context_and_prefill(
    running: int, context: int, prefill: int, expected_ms: float
) -> None:
    found_ms = step_time_s(H100_LIKE_1B, running, context, prefill) * 1000
    assert found_ms == pytest.approx(expected_ms, rel=1e-12)


def test_every_coefficient_has_a_source() -> None:
    numbers = {spec.name for spec in fields(H100_LIKE_1B) if spec.type in ("int", "float")}
    assert len(numbers) == 6
    assert set(H100_LIKE_1B.sources) == numbers


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("base_ms", 0.0),
        ("base_ms", float("nan")),
        ("per_running_ms", -0.1),
        ("prefill_tokens_per_s", float("inf")),
        ("chunk_tokens", 0),
        ("max_sequences", 0),
    ],
)
def test_a_coefficient_out_of_range_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        replace(H100_LIKE_1B, **{name: value})
