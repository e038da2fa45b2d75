"""A run is a process of its own that cannot hide what happened in it."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.runs import ACTIVATED, PLAIN, Runner, read_run
from conformance.suites import Suite

ROOT = Path(__file__).parents[2]

SMALL = """
import pytest
from langchain_core.language_models import FakeListChatModel

def test_that_calls_a_model():
    FakeListChatModel(responses=["yes", "no"]).invoke("well?")

def test_that_calls_it_more_often():
    FakeListChatModel(responses=["yes", "no"]).batch(["one", "two"])

@pytest.mark.skip
def test_that_is_skipped(): ...
"""
HANGING = """
import threading

def test_before(): ...
def test_that_hangs():
    threading.Event().wait()
"""


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    """Return what runs a suite, whose tests each test writes, on this checkout."""
    suite = Suite("small", arguments=("-p", "pytest_timeout"))
    place = tmp_path / "suite"
    (place / "tests").mkdir(parents=True)
    (place / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    python = tmp_path / "python"
    checkout = os.pathsep.join(str(ROOT / folder) for folder in (".", "integrations", "adapters"))
    python.write_text(f"""#!/bin/sh
        export PYTHONPATH="{checkout}:$PYTHONPATH" PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
        exec "{sys.executable}" "$@"
    """)
    python.chmod(0o755)
    return Runner(python, place, suite, tmp_path / "logs", workers=0)


def _write(runner: Runner, text: str) -> None:
    (runner.place / "tests/test_small.py").write_text(text)


def test_a_run_under_activate_counts_the_calls_that_were_scheduled(runner: Runner) -> None:
    _write(runner, SMALL)
    run = runner.run(ACTIVATED)
    assert run.outcomes == {
        "tests/test_small.py::test_that_calls_a_model": "passed",
        "tests/test_small.py::test_that_calls_it_more_often": "passed",
        "tests/test_small.py::test_that_is_skipped": "skipped",
    }
    assert (run.leaf_calls, run.bypassed, run.problems) == (3, {}, ())


def test_one_test_of_a_plain_run_runs_alone_and_schedules_nothing(runner: Runner) -> None:
    _write(runner, SMALL)
    test = "tests/test_small.py::test_that_calls_a_model"
    run = runner.run_alone(PLAIN, test)
    assert (run.outcomes, run.leaf_calls, run.problems) == ({test: "passed"}, 0, ())


def test_a_test_that_hangs_fails_at_its_limit(runner: Runner) -> None:
    _write(runner, HANGING)
    run = replace(runner, test_limit_s=1).run(PLAIN)
    assert run.outcomes["tests/test_small.py::test_that_hangs"] == "failed"
    assert run.problems == ()


def test_a_run_that_hangs_is_ended(runner: Runner) -> None:
    _write(runner, HANGING)
    run = replace(runner, test_limit_s=0, run_limit_s=0.1).run(PLAIN)
    assert any("took too long" in problem for problem in run.problems)


def test_a_run_that_was_ended_names_the_tests_it_was_in(tmp_path: Path) -> None:
    _record(tmp_path, ("t::a", "started"), ("t::a", "passed"))
    run = read_run(tmp_path, code=None, num_accelerated=0)
    assert run.outcomes == {"t::a": "unfinished"}
    assert "unfinished: t::a" in run.problems[0]


def test_the_counts_of_all_processes_are_added(tmp_path: Path) -> None:
    _record(tmp_path, ("t::a", "passed"))
    for worker, bypassed in (("gw0", {"x: Error": 1}), ("gw1", {"x: Error": 2, "y: Error": 1})):
        text = json.dumps({"leaf_calls": 4, "bypassed": bypassed})
        (tmp_path / f"leaves-{worker}.json").write_text(text)
    run = read_run(tmp_path, code=0, num_accelerated=2)
    assert (run.leaf_calls, run.problems) == (8, ())
    assert run.bypassed == {"x: Error": 3, "y: Error": 1}


def test_a_process_that_was_not_accelerated_is_a_problem_of_the_run(tmp_path: Path) -> None:
    _record(tmp_path, ("t::a", "passed"))
    (tmp_path / "leaves-gw0.json").write_text('{"leaf_calls": 1, "bypassed": {}}')
    assert read_run(tmp_path, 0, num_accelerated=2).problems == (
        "1 of 2 processes were accelerated",
    )


def test_an_exit_code_that_is_no_verdict_is_a_problem_of_the_run(tmp_path: Path) -> None:
    _record(tmp_path, ("t::a", "failed"))
    assert read_run(tmp_path, 1, num_accelerated=0).problems == ()
    assert "pytest ended with 3" in read_run(tmp_path, 3, num_accelerated=0).problems[0]


def test_a_file_that_cannot_be_collected_is_a_problem_of_the_run(runner: Runner) -> None:
    _write(runner, "import no_such_module")
    run = runner.run(PLAIN)
    assert run.outcomes == {"tests/test_small.py": "failed"}
    assert any("cannot be collected" in problem for problem in run.problems)


def test_a_run_without_tests_has_a_problem(tmp_path: Path) -> None:
    assert "no test ran" in read_run(tmp_path, code=5, num_accelerated=0).problems


def _record(found: Path, *events: tuple[str, str]) -> None:
    lines = [json.dumps({"id": test, "event": event}) + "\n" for test, event in events]
    (found / "outcomes.jsonl").write_text("".join(lines))
