"""Step-time tables: exact arithmetic, committed sources, named errors."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from bench.emulated.table import (
    FAST_FP8,
    H100_LIKE_8B,
    TABLES,
    DeviceTable,
    find_table,
    max_decode_tokens_per_s,
    replicated,
    step_time_s,
)
from rag_accel.errors import ConfigError


@pytest.mark.parametrize(
    ("table", "running", "context", "prefill", "expected_ms"),
    [
        (H100_LIKE_8B, 0, 0, 0, 8.0),
        (H100_LIKE_8B, 1, 0, 0, 8.06),
        (H100_LIKE_8B, 2, 1200, 512, 8 + 0.12 + 0.048 + 25.6),
        (H100_LIKE_8B, 256, 256_000, 0, 8 + 15.36 + 10.24),
        (FAST_FP8, 10, 5000, 400, 5 + 0.3 + 0.1 + 10.0),
    ],
)
def test_step_time_adds_base_running_context_and_prefill(
    table: DeviceTable, running: int, context: int, prefill: int, expected_ms: float
) -> None:
    found_ms = step_time_s(table, running, context, prefill) * 1000
    assert found_ms == pytest.approx(expected_ms, rel=1e-12)


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_every_coefficient_of_a_committed_table_has_a_source(table: DeviceTable) -> None:
    numbers = {spec.name for spec in fields(table) if spec.type in ("int", "float")}
    assert len(numbers) == 6
    assert set(table.sources) == numbers


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_committed_tables_say_that_they_were_not_measured(table: DeviceTable) -> None:
    assert table.label == "modelled, not measured"


def test_a_table_is_found_by_its_name() -> None:
    assert find_table("fast_fp8") is FAST_FP8


def test_an_unknown_table_is_refused_with_the_known_names() -> None:
    with pytest.raises(ConfigError, match="h100_like_8b, fast_fp8"):
        find_table("h200")


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
        replace(H100_LIKE_8B, **{name: value})


def test_the_best_rate_is_that_of_a_full_batch() -> None:
    full_step_s = (8 + 0.06 * 256 + 0.04 * 256) / 1000
    assert max_decode_tokens_per_s(H100_LIKE_8B, 1000) == pytest.approx(256 / full_step_s)


def test_four_devices_take_four_times_the_work_in_the_same_time() -> None:
    four = replicated(H100_LIKE_8B, 4)
    one_s = step_time_s(H100_LIKE_8B, 20, 16_000, 512)
    assert step_time_s(four, 80, 64_000, 2048) == pytest.approx(one_s)
    assert (four.max_sequences, four.chunk_tokens) == (1024, 2048)
    assert four.name == "4 x h100_like_8b"
    assert replicated(H100_LIKE_8B, 1) == replace(H100_LIKE_8B, name="1 x h100_like_8b")


def test_no_devices_are_refused() -> None:
    with pytest.raises(ConfigError, match="number of devices"):
        replicated(H100_LIKE_8B, 0)
