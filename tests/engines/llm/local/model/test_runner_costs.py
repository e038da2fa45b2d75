"""Measured seconds decide between runners, and are kept for the next start."""

from __future__ import annotations

import math
import os
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from tiny_models import fresh, runner_for, shared

from rag_accel.engines.llm.local.batching.rows import Runner
from rag_accel.engines.llm.local.model.runner_costs import RunnerCosts


def costs(
    paged: tuple[float, float] = (0.1, 0.02),
    torch: tuple[float, float] = (0.1, 0.05),
    rows: tuple[float, float] = (0.05, 0.04),
) -> RunnerCosts:
    return RunnerCosts(2, paged, torch, rows, date(2026, 11, 26))


@pytest.mark.parametrize(
    ("paged", "faster"),
    [((0.1, 0.02), True), ((0.9, 0.03), False), ((1.0, 0.01), True), ((0.1, 0.06), False)],
    ids=["both", "prompts cost more than tokens save", "tokens save more", "tokens are slower"],
)
def test_a_short_answer_decides(paged: tuple[float, float], faster: bool) -> None:
    assert costs(paged=paged).is_faster == faster


@pytest.mark.parametrize(
    ("rows", "tokens"),
    [((0.05, 0.05), math.inf), ((0.04, 0.05), math.inf), ((0.114, 0.05), 655.36)],
    ids=["as fast", "faster", "a microsecond a slot dearer"],
)
def test_blocks_are_worth_it_from_a_length_on(rows: tuple[float, float], tokens: float) -> None:
    # A row of a prompt takes 0.8 ms. 40 % of it is what a single one takes for 328 slots.
    assert costs(paged=(0.1024, 0.02), rows=rows).blocks_from == pytest.approx(tokens)


@pytest.mark.parametrize(
    "found", [costs(), RunnerCosts(2, paged=(0.1, 0.02), rows=(0.05, 0.04)), RunnerCosts(2)]
)
def test_what_was_measured_is_kept(tmp_path: Path, found: RunnerCosts) -> None:
    assert RunnerCosts.of(tmp_path, 2) == RunnerCosts(2)
    found.keep(tmp_path)
    assert RunnerCosts.of(tmp_path, 2) == found
    assert RunnerCosts.of(tmp_path, 1) == RunnerCosts(1)


@pytest.mark.parametrize(
    "content",
    [
        *(
            '{"compared": "soon"}',
            '{"compared": 3}',
            '{"compared": ""}',
            "",
            "{}",
            "[1]",
            "1",
            '{"paged": "x"}',
            '{"threads": [1, 2]}',
        ),
        '{"paged": [1], "torch": [1, 2], "rows": [1, 2]}',
        f'{{"paged": [1{"0" * 400}, 2]}}',
        '{"paged": [Infinity, 2]}',
        '{"paged": [1, NaN]}',
        '{"paged": [1, -2]}',
        '{"paged": [1, 1e9]}',
        f'{{"paged": {"[" * 100_000}',
    ],
)
def test_a_damaged_file_is_measured_again(tmp_path: Path, content: str) -> None:
    costs().keep(tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_text(content)
    assert RunnerCosts.of(tmp_path, 2) == RunnerCosts(2)


def test_a_file_that_has_no_end_is_measured_again(tmp_path: Path) -> None:
    costs().keep(tmp_path)
    (file,) = tmp_path.iterdir()
    file.unlink()
    os.mkfifo(file)
    assert RunnerCosts.of(tmp_path, 2) == RunnerCosts(2)
    costs().keep(tmp_path)
    assert RunnerCosts.of(tmp_path, 2) == costs()


def test_a_folder_that_is_gone_keeps_nothing(tmp_path: Path) -> None:
    costs().keep(tmp_path / "gone")
    assert RunnerCosts.of(tmp_path / "gone", 2) == RunnerCosts(2)


def test_what_is_unknown_decides_nothing() -> None:
    found = RunnerCosts(2, paged=(0.1, 0.02))
    assert found.is_faster is None
    assert found.blocks_from == math.inf


def test_runners_are_measured_and_their_pools_left_empty() -> None:
    runners = [runner_for(shared("qwen3"), 1 << 26) for _ in range(2)]
    found = RunnerCosts(1).with_both(runners[0], runners[1])
    assert found.paged is not None
    assert found.torch is not None
    assert found.compared is not None
    assert min(*found.paged, *found.torch) > 0
    assert [runner.pool.held_bytes for runner in runners] == [0, 0]


def test_rows_are_measured_where_there_is_room_for_a_long_prompt() -> None:
    short = runner_for(shared("qwen3"), 1 << 26)  # its context is one of 512
    assert RunnerCosts(1).with_rows(short) == RunnerCosts(1)
    model = fresh("qwen3")
    model.config.max_position_embeddings = 4096
    found = RunnerCosts(1, torch=(1.0, 2.0)).with_rows(runner := runner_for(model))
    assert found.paged is not None
    assert found.rows is not None
    assert min(*found.paged, *found.rows) > 0
    assert found.torch == (1.0, 2.0)
    assert runner.pool.held_bytes == 0


def test_known_rows_are_not_measured_again() -> None:
    def refuse(*_: object) -> None:
        raise AssertionError

    runner = SimpleNamespace(pool=SimpleNamespace(fits=refuse))
    assert costs().with_rows(cast("Runner", runner)) == costs()


def test_the_reason_says_what_was_measured() -> None:
    assert str(costs()) == (
        "20 ms a token and 100 ms for 128 of a prompt by paged attention,"
        " 50 ms a token and 100 ms for 128 of a prompt by torch, measured on 2 threads"
        " on 2026-11-26, to measure again: rag-accel cache purge --traces"
    )
    assert str(RunnerCosts(2)) == "measured on 2 threads"
