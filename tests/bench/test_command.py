from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from bench import command
from bench.command import main
from bench.results import SuiteResult, load, save
from bench.suites import (
    load_suite,
    parse_definitions,
    ratio_definitions,
    suite_names,
    suite_summary,
)
from rag_accel.errors import ConfigError, EngineError


@dataclass
class _Suite:
    result: SuiteResult
    error: Exception | None = None
    quick: bool | None = None

    def run(self, quick: bool) -> SuiteResult:
        self.quick = quick
        if self.error is not None:
            raise self.error
        return replace(self.result, environment={})


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch, result: SuiteResult) -> _Suite:
    made = _Suite(result)
    monkeypatch.setattr(command, "load_suite", lambda _: made)
    # The command sets these where they are missing; here they go again.
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    return made


def test_one_suite_is_run_printed_and_kept(
    suite: _Suite, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "demo.json"
    assert main(["demo", "--quick", "--json", str(path)]) == 0
    assert suite.quick is True
    assert "sample_throughput_64 = 2" in capsys.readouterr().out
    (kept,) = load(path)
    assert kept.environment["quick"] is True
    assert kept.environment["duration_s"] >= 0


def test_a_wrong_answer_fails_the_run_and_is_not_kept(
    suite: _Suite, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite.result = replace(suite.result, wrong=("ours, 64 users: it said no",))
    path = tmp_path / "demo.json"
    assert main(["demo", "--json", str(path)]) == 1
    assert not path.exists()
    printed = capsys.readouterr()
    assert "sample_throughput_64 = 2" in printed.out
    assert "ours, 64 users: it said no" in printed.err


def _commit(monkeypatch: pytest.MonkeyPatch, **code: Any) -> None:
    known = {"commit": "c0ffee", "is_dirty": False, **code}
    monkeypatch.setattr("bench.environment.measured_code", lambda: known)


def test_processes_of_different_times_join_one_file(
    monkeypatch: pytest.MonkeyPatch, suite: _Suite, result: SuiteResult, tmp_path: Path
) -> None:
    _commit(monkeypatch)
    path = tmp_path / "demo.json"
    line = ["demo", "--quick", "--append", "--json", str(path)]
    suite.result = replace(result, suite="demo")
    assert main(line) == 0
    assert load(path)[0].by_process == {}
    suite.result = replace(suite.result, ratios={**result.ratios, "sample_p99_64": 0.9})
    assert main(line) == 0
    monkeypatch.setattr(command, "run_suite", lambda *_: load(path)[0])
    assert main([*line, "--processes", "2"]) == 0
    (kept,) = load(path)
    assert kept.by_process["sample_p99_64"] == (0.5, 0.9, 0.5, 0.9)
    assert kept.environment["num_processes"] == 4


def test_a_process_of_other_code_is_not_even_run(
    monkeypatch: pytest.MonkeyPatch,
    suite: _Suite,
    result: SuiteResult,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = ["demo", "--append", "--json", str(tmp_path / "demo.json")]
    suite.result = replace(result, suite="demo")
    _commit(monkeypatch)
    assert main(line) == 0
    suite.quick = None
    _commit(monkeypatch, commit="decade")
    assert main(line) == 2
    assert suite.quick is None
    assert "commit decade" in capsys.readouterr().err


def test_a_suite_with_parameters_is_given_other_values(
    suite: _Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []

    def configured(quick: bool, settings: dict[str, str]) -> str:
        told.append((quick, settings))
        return "these sizes"

    def run(quick: bool, sizes: Any) -> SuiteResult:
        told.append(sizes)
        return suite.result

    monkeypatch.setattr(suite, "configured", configured, raising=False)
    monkeypatch.setattr(suite, "run", run)
    assert main(["demo", "--quick", "--set", "nprobe=64", "--set", "mix=a:1,b:2"]) == 0
    assert told == [(True, {"nprobe": "64", "mix": "a:1,b:2"}), "these sizes"]


def test_a_suite_without_parameters_is_not_given_any(
    suite: _Suite, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--set", "nprobe=64"]) == 2
    assert "without parameters" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["demo", "--set", "nprobe"])


def test_a_run_is_full_unless_it_is_told_to_be_quick(suite: _Suite) -> None:
    assert main(["demo"]) == 0
    assert suite.quick is False


@pytest.mark.parametrize("error", [EngineError("broken"), ImportError("no extra")])
def test_an_error_is_told_without_a_trace(
    suite: _Suite, error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    suite.error = error
    assert main(["demo"]) == 2
    assert str(error) in capsys.readouterr().err


def test_an_unknown_suite_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["nothing"])
    assert "overhead" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="unknown suite"):
        load_suite("nothing")


def _processes(
    monkeypatch: pytest.MonkeyPatch, result: SuiteResult, fails: str = "", hangs: str = ""
) -> list[list[str]]:
    lines: list[list[str]] = []

    def run(line: list[str], cwd: Path, limit_s: float) -> int | None:
        lines.append(line)
        name = line[3]
        number = len(lines)
        if name == hangs:
            return None
        if name == fails or f"{name} {number}" == fails:
            return 2
        found = replace(result, suite=name, ratios={"sample_p99_64": float(number)})
        save(Path(line[line.index("--json") + 1]), [found])
        return 0

    monkeypatch.setattr("bench.running.run_tree", run)
    return lines


def test_all_suites_run_in_processes_of_their_own_and_are_kept_together(
    monkeypatch: pytest.MonkeyPatch, result: SuiteResult, suite: _Suite, tmp_path: Path
) -> None:
    lines = _processes(monkeypatch, result)
    path = tmp_path / "all.json"
    assert main(["all", "--quick", "--json", str(path)]) == 0
    assert [line[3] for line in lines] == suite_names()
    assert all("--quick" in line for line in lines)
    assert [one["suite"] for one in json.loads(path.read_text())] == suite_names()


def test_one_suite_is_run_in_several_fresh_processes(
    monkeypatch: pytest.MonkeyPatch,
    result: SuiteResult,
    suite: _Suite,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = _processes(monkeypatch, result)
    path = tmp_path / "demo.json"
    assert main(["demo", "--quick", "--processes", "5", "--json", str(path)]) == 0
    assert [line[3] for line in lines] == ["demo"] * 5
    assert all("--quick" in line and "--processes" not in line for line in lines)
    (kept,) = load(path)
    assert kept.ratios == {"sample_p99_64": 3.0}
    assert kept.by_process == {"sample_p99_64": (1.0, 2.0, 3.0, 4.0, 5.0)}
    assert "sample_p99_64 = 3 (1 to 5)" in capsys.readouterr().out


@pytest.mark.parametrize(("trouble", "runs"), [({"fails": "demo 2"}, 2), ({"hangs": "demo"}, 1)])
def test_nothing_is_kept_of_a_suite_that_fails_in_one_of_its_processes(
    monkeypatch: pytest.MonkeyPatch,
    result: SuiteResult,
    suite: _Suite,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    trouble: dict[str, str],
    runs: int,
) -> None:
    lines = _processes(monkeypatch, result, **trouble)
    path = tmp_path / "demo.json"
    assert main(["demo", "--processes", "3", "--json", str(path)]) == 1
    assert len(lines) == runs
    assert not path.exists()
    assert "failed: demo" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name",
    ["ablation", "demo", "langgraph_depth", "overhead", "workflows"],
)
def test_every_ratio_names_its_opponent(name: str) -> None:
    definitions = ratio_definitions(name)
    assert definitions
    for ratio, text in definitions.items():
        assert text.startswith("against "), ratio
        assert not text.startswith("against the same:"), f"{ratio} may stand elsewhere in a table"


def test_definitions_are_read_from_a_docstring() -> None:
    text = "Head.\n\nRatios:\n    one: first\n        line: two\n    two: second\n\nMore.\n"
    assert parse_definitions(text) == {"one": "first line: two", "two": "second"}


def test_a_suite_that_is_gone_defines_nothing() -> None:
    assert ratio_definitions("nothing") == {}
    assert suite_summary("nothing") == ""


@pytest.mark.parametrize("name", suite_names())
def test_a_suite_says_in_one_line_what_it_measures(name: str) -> None:
    assert suite_summary(name).endswith(".")
