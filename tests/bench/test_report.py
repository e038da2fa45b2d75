from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.measure import Estimate, Interval
from bench.report import (
    EMULATED,
    PARTLY,
    SCRIPTED,
    figure,
    labels,
    main,
    report,
    spread,
    surroundings,
)
from bench.results import SuiteResult, save


def test_the_report_holds_ratios_with_their_meaning_and_every_row() -> None:
    text = report(SuiteResult("demo", (), {"demo_throughput_64": 2.5}))
    assert "demo_throughput_64 = 2.5\n    against the plain chain (LangChain" in text


def test_rows_are_printed_in_columns(result: SuiteResult) -> None:
    lines = report(result).splitlines()
    assert lines[-1].split() == ["64", "users", "answers_per_s", "accelerated", "160", "5"]
    assert lines[-4].split()[-3:] == ["12.5", "40", "256"]


def test_a_report_of_an_emulated_accelerator_says_so(result: SuiteResult) -> None:
    assert EMULATED in report(replace(result, emulated=True)).splitlines()[0]
    title = report(replace(result, scripted=True)).splitlines()[0]
    assert SCRIPTED in title
    assert "emulated" not in title


def test_the_part_that_is_scripted_is_told_in_words(result: SuiteResult) -> None:
    (label,) = labels(replace(result, scripted="the search sleeps"))
    assert label == f"{PARTLY} the search sleeps"


def test_the_cards_of_the_machine_are_told(result: SuiteResult) -> None:
    environment = {**result.environment, "cards": ["A card"]}
    assert "2 cores, A card, " in surroundings(replace(result, environment=environment))


def test_the_ratio_of_one_process_stands_with_its_interval(result: SuiteResult) -> None:
    ratios = {"sample_throughput_64": Estimate(2.0, Interval(1.5, 2.5))}
    assert spread(replace(result, ratios=ratios), "sample_throughput_64") == " (95 %: 1.5 to 2.5)"
    assert spread(result, "sample_throughput_64") == ""


@pytest.mark.parametrize(
    ("is_dirty", "text"), [(False, "commit 0123456789"), (True, "with changes")]
)
def test_the_measured_commit_is_told(result: SuiteResult, is_dirty: bool, text: str) -> None:
    code = {"commit": "0123456789abcdef", "is_dirty": is_dirty}
    assert surroundings(replace(result, environment=code)).endswith(text)


def test_the_ratios_of_several_processes_stand_with_their_range(of_three: SuiteResult) -> None:
    lines = report(of_three).splitlines()
    assert lines[2].endswith("the first of 3 processes")
    assert "sample_throughput_64 = 2 (1.5 to 4)" in lines
    assert any("median (lowest to highest) of 3 processes" in line for line in lines)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (2.0, "2"), (0.123456, "0.1235"), (1234.5, "1234"), (-0.02, "-0.02"), (0.0, "0")],
)
def test_figures_have_four_significant_digits(value: float | None, text: str) -> None:
    assert figure(value) == text


def test_the_command_prints_all_that_a_file_holds(
    result: SuiteResult, of_three: SuiteResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path / "all.json", [result, of_three])
    assert main([str(tmp_path / "all.json")]) == 0
    assert capsys.readouterr().out == f"{report(result)}\n\n{report(of_three)}\n"
    assert main([str(tmp_path / "none.json")]) == 2
    assert "no result file" in capsys.readouterr().err
