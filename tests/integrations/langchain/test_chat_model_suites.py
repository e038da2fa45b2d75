"""An accelerated chat model passes exactly the standard tests that the bare one passes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

# test_local_chat.py runs such a suite in the quick run.
pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def _outcomes(arm: str, folder: Path) -> dict[str, str]:
    """Run the suite in a process of its own and return each test's outcome."""
    report = folder / f"{arm}.xml"
    suite = HERE / "suites" / "chat_model_suite.py"
    command = [sys.executable, "-m", "pytest", str(suite), f"--junitxml={report}"]
    done = subprocess.run(
        [*command, "--benchmark-disable"],
        cwd=ROOT,
        env={**os.environ, "SUITE": arm},
        capture_output=True,
        text=True,
        check=False,
    )
    assert report.exists(), done.stdout + done.stderr
    return {
        f"{case.get('classname')}::{case.get('name')}": case[0].tag if len(case) else "passed"
        for case in ElementTree.parse(report).getroot().iter("testcase")
    }


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """Return the outcomes of both arms."""
    folder = tmp_path_factory.mktemp("suites")
    return {arm: _outcomes(arm, folder) for arm in ("bare", "accelerated")}


def test_the_scripted_model_passes_what_it_claims_to_support(
    outcomes: dict[str, dict[str, str]],
) -> None:
    bare = outcomes["bare"]
    assert set(bare.values()) == {"passed", "skipped"}
    assert sum(outcome == "passed" for outcome in bare.values()) >= 50


def test_the_accelerated_model_has_the_same_outcome_in_every_test(
    outcomes: dict[str, dict[str, str]],
) -> None:
    assert outcomes["accelerated"] == outcomes["bare"]
