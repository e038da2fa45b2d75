"""A forked child gets a fresh default; an explicit accelerator of the parent refuses by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CHECKS = Path(__file__).parent / "suites" / "fork_checks.py"

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(CHECKS)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_child_has_a_fresh_default_that_schedules(found: dict[str, Any]) -> None:
    assert found["fresh default"] is True
    assert found["default"] == [found["expected"], 1]
    assert found["default async"] == found["expected"]


@pytest.mark.parametrize("way", ["", " stream", " sync leaf from a loop"])
def test_an_explicit_accelerator_refuses_in_the_child(found: dict[str, Any], way: str) -> None:
    assert found[f"explicit{way}"] == "ForkedError"


def test_closing_a_parents_accelerator_in_the_child_does_nothing(found: dict[str, Any]) -> None:
    assert found["explicit close"] is None
    assert found["explicit parent afterwards"] == [found["expected"], 1]


def test_a_child_forked_inside_a_run_is_no_part_of_it(found: dict[str, Any]) -> None:
    answer, scheduled = found["inside a run"]
    assert answer.startswith("answer")
    assert scheduled == 0


def test_a_child_forked_in_a_block_of_an_explicit_accelerator_runs_plainly(
    found: dict[str, Any],
) -> None:
    answer, scheduled = found["in a block of an explicit one"]
    assert answer.startswith("answer")
    assert scheduled == 0


def test_the_parent_goes_on(found: dict[str, Any]) -> None:
    assert found["parent afterwards"] == [found["expected"], 1]
