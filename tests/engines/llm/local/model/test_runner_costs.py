"""Measured seconds decide between runners, and are kept for the next start."""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path

import pytest
from tiny_models import runner_for, shared

from rag_accel.engines.llm.local.model.runner_costs import RunnerCosts


def costs(
    paged: tuple[float, float] = (0.1, 0.02),
    torch: tuple[float, float] = (0.1, 0.05),
) -> RunnerCosts:
    return RunnerCosts(2, paged, torch, date(2026, 11, 26))


@pytest.mark.parametrize(
    ("paged", "faster"),
    [((0.1, 0.02), True), ((0.9, 0.03), False), ((1.0, 0.01), True), ((0.1, 0.06), False)],
    ids=["both", "prompts cost more than tokens save", "tokens save more", "tokens are slower"],
)
def test_a_short_answer_decides(paged: tuple[float, float], faster: bool) -> None:
    assert costs(paged=paged).is_faster == faster


@pytest.mark.parametrize("found", [costs(), RunnerCosts(2, paged=(0.1, 0.02)), RunnerCosts(2)])
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
        '{"paged": [1], "torch": [1, 2]}',
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


def test_runners_are_measured_and_their_pools_left_empty() -> None:
    runners = [runner_for(shared("qwen3"), 1 << 26) for _ in range(2)]
    found = RunnerCosts(1).with_both(runners[0], runners[1])
    assert found.paged is not None
    assert found.torch is not None
    assert found.compared is not None
    assert min(*found.paged, *found.torch) > 0
    assert [runner.pool.held_bytes for runner in runners] == [0, 0]


def test_what_an_earlier_release_measured_besides_is_passed_over(tmp_path: Path) -> None:
    costs().keep(tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_text(file.read_text().replace("{", '{"rows": [0.05, 0.04], ', 1))
    assert RunnerCosts.of(tmp_path, 2) == costs()


def test_the_reason_says_what_was_measured() -> None:
    assert str(costs()) == (
        "20 ms a token and 100 ms for 128 of a prompt by paged attention,"
        " 50 ms a token and 100 ms for 128 of a prompt by torch, measured on 2 threads"
        " on 2026-11-26, to measure again: rag-accel cache purge --traces"
    )
    assert str(RunnerCosts(2)) == "measured on 2 threads"
