"""A suite passes if nothing newly fails, nothing was bypassed and something was accelerated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conformance.compare import Comparison
from conformance.examine import Examination, keep_run, load_run
from conformance.report import save, table
from conformance.runs import Run

GOOD = Run({"t::a": "passed", "t::b": "skipped"}, leaf_calls=7)


def _examination(
    plain: Run = GOOD, accelerated: Run = GOOD, comparison: Comparison | None = None
) -> Examination:
    bypassed = accelerated.bypassed
    return Examination("suite", "1.0", plain, accelerated, comparison or Comparison(), bypassed)


def test_a_suite_without_faults_passes() -> None:
    assert _examination().faults == ()


def test_flaky_tests_and_tests_that_fail_plainly_are_no_faults() -> None:
    assert _examination(comparison=Comparison(flaky=("a",), failing_plain=("b",))).faults == ()


@pytest.mark.parametrize(
    ("examination", "fault"),
    [
        (_examination(comparison=Comparison(newly_failing=("t::a",))), "newly failing: t::a"),
        (_examination(accelerated=Run(GOOD.outcomes)), "no leaf call passed the scheduler"),
        (_examination(accelerated=Run({}, 7, {"x: Error": 2})), "bypassed 2 times: x: Error"),
        (_examination(accelerated=Run({}, 7, problems=("slow",))), "the accelerated run: slow"),
        (_examination(plain=Run({}, problems=("no test ran",))), "the plain run: no test ran"),
    ],
)
def test_a_fault_says_what_is_wrong(examination: Examination, fault: str) -> None:
    (found,) = examination.faults
    assert fault in found


def test_a_clean_plain_run_is_kept_for_its_environment(tmp_path: Path) -> None:
    path = tmp_path / "plain" / "suite.json"
    keep_run(path, GOOD, "this environment")
    found = load_run(path, "this environment")
    assert found is not None
    assert (found.outcomes, found.leaf_calls) == (GOOD.outcomes, GOOD.leaf_calls)
    assert load_run(path, "another") is None


@pytest.mark.parametrize("run", [Run({"a": "failed"}), Run({"a": "passed"}, problems=("x",))])
def test_a_plain_run_with_failures_is_not_kept(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "suite.json"
    keep_run(path, GOOD, "stamp")
    keep_run(path, run, "stamp")
    assert load_run(path, "stamp") is None


@pytest.mark.parametrize("text", ["", "[]", '{"stamp": "stamp"}', '{"stamp": "stamp", "run": {}}'])
def test_a_kept_run_that_cannot_be_read_is_made_again(text: str, tmp_path: Path) -> None:
    path = tmp_path / "suite.json"
    path.write_text(text)
    assert load_run(path, "stamp") is None


def test_the_report_has_the_figures_and_the_names(tmp_path: Path) -> None:
    comparison = Comparison(("t::a",), ("t::b",), ("t::c",))
    examination = _examination(comparison=comparison)
    text = table([examination])
    assert "1 / 0 / 1" in text
    assert "does not pass: newly failing: t::a" in text
    assert "passed when run alone: t::b" in text
    assert "failed plainly: t::c" in text
    save(tmp_path / "report.json", "activated", [examination])
    report = json.loads((tmp_path / "report.json").read_text())
    (suite,) = report["suites"]
    assert suite["newly_failing"] == ["t::a"]
    assert suite["leaf_calls"] == 7
