from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.compare import Change, changes, main, warnings
from bench.results import SuiteResult, save


def test_every_ratio_and_every_median_is_compared(result: SuiteResult) -> None:
    newer = replace(result, ratios={**result.ratios, "sample_p99_64": 0.4})
    found = changes([result], [newer])
    assert found[0] == Change("sample: sample_p99_64", 0.5, 0.4)
    assert Change("sample: 64 users, latency_ms, plain", 12.5, 12.5) in found
    assert len(found) == len(result.ratios) + len(result.rows)


@pytest.mark.parametrize(
    ("old", "new", "percent"),
    [(2.0, 3.0, 50.0), (2.0, 1.0, -50.0), (-2.0, -1.0, 50.0), (0.0, 1.0, None), (None, 1.0, None)],
)
def test_a_change_is_in_percent_of_the_old_figure(
    old: float | None, new: float, percent: float | None
) -> None:
    assert Change("x", old, new).percent == percent


def test_other_surroundings_are_warned_of(result: SuiteResult) -> None:
    elsewhere = replace(result, environment={**result.environment, "cores": 16})
    assert warnings([result], [result]) == []
    assert warnings([result], [elsewhere]) == ["warning: sample: cores differs: 2 and 16"]


def test_the_command_prints_the_changes(
    result: SuiteResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    save(old, [result])
    save(new, [replace(result, ratios={"sample_p99_64": 0.4})])
    assert main([str(old), str(new)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["0.5", "->", "0.4", "-20.0", "%", "sample:", "sample_p99_64"]
    assert lines[1].split()[:3] == ["2", "->", "-"]
