"""A plugin of pytest that writes what becomes of each test, line by line.

The lines are written at once, so that they tell which test ran when the process was ended.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Record where all reports arrive: not in the workers of pytest-xdist."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(Path(os.environ["CONFORMANCE_FOUND"])))


class Recorder:
    """Append one line for each start, phase and end of a test, and each file not collected."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / "outcomes.jsonl").open("a", buffering=1)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note that a test began."""
        self._write(nodeid, "started")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how a phase of a test ended."""
        self._write(report.nodeid, report.outcome)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Note that a test is over."""
        self._write(nodeid, "finished")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that could not be collected."""
        if report.failed:
            self._write(report.nodeid, report.outcome)

    def pytest_unconfigure(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, test: str, event: str) -> None:
        self._file.write(json.dumps({"id": test, "event": event}) + "\n")
