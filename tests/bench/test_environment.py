from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from bench import environment
from bench.environment import measured_code, read_environment, settings


def test_the_environment_says_all_that_is_needed_as_json() -> None:
    found = json.loads(json.dumps(read_environment(quick=True)))
    needed = {"python", "versions", "cpu", "cores", "load_average", "date", "variables", "quick"}
    assert needed <= set(found)
    assert found["cores"] >= 1
    assert len(found["load_average"]) == 3
    assert found["quick"] is True
    assert "numpy" in found["versions"]
    assert {"commit", "is_dirty", "num_processes"} <= set(found)


def _git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    line = ["git", *identity, "-c", "commit.gpgsign=false", *words]
    subprocess.run(line, cwd=folder, check=True, capture_output=True)


def _write(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_results_tests_and_documents_are_no_other_code(tmp_path: Path) -> None:
    _git(tmp_path, "init")
    _write(tmp_path, "engine.py", "one")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-m", "Measure this")
    first = measured_code(tmp_path)
    assert len(first["commit"]) == 40
    assert first["is_dirty"] is False
    for name in ("bench/results/demo.json", "README.md", "changes/more.added.md", "tests/test.py"):
        _write(tmp_path, name, "new")
        assert measured_code(tmp_path) == first
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-m", "Publish")
    assert measured_code(tmp_path) == first
    _write(tmp_path, "engine.py", "two")
    assert measured_code(tmp_path) == {**first, "is_dirty": True}
    _git(tmp_path, "commit", "-a", "-m", "Measure that")
    assert measured_code(tmp_path)["commit"] != first["commit"]
    _write(tmp_path, "new_engine.py", "three")
    assert measured_code(tmp_path)["is_dirty"] is True


@pytest.mark.parametrize(("loads", "waits"), [([1.0], 0), ([3.0, 1.1, 0.9], 2), ([3.0] * 200, 120)])
def test_a_suite_waits_until_the_machine_is_quiet_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, loads: list[float], waits: int
) -> None:
    slept, told = list[float](), iter(loads)
    monkeypatch.setattr(environment.os, "getloadavg", lambda: (next(told), 0.0, 0.0))
    monkeypatch.setattr(environment.time, "sleep", slept.append)
    monkeypatch.setattr(environment.time, "monotonic", lambda: sum(slept))
    environment.wait_until_quiet()
    assert slept == [5.0] * waits


def test_where_git_knows_nothing_the_code_has_no_name(tmp_path: Path) -> None:
    assert measured_code(tmp_path) == {"commit": None, "is_dirty": None}


def test_only_variables_that_change_the_figures_are_recorded() -> None:
    environ = {
        **{"OMP_NUM_THREADS": "1", "RAG_ACCEL": "1", "RAG_ACCEL_MAX_BATCH": "8"},
        **{"HOME": "/home/me", "RAG_ACCELERATION": "x"},
    }
    assert settings(environ) == {
        "OMP_NUM_THREADS": "1",
        "RAG_ACCEL": "1",
        "RAG_ACCEL_MAX_BATCH": "8",
    }
