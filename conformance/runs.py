"""Run a suite once, in a process of its own, and read what it left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from conformance.outcomes import UNFINISHED, outcomes_of
from conformance.suites import Suite

#: Plugins of pytest, by module name: they run in the suites' environment, not in ours.
PLUGINS = Path(__file__).parent / "plugins"

TEST_LIMIT_S = 120
RUN_LIMIT_S = 1800

#: What a developer's own settings would change in the suites.
_NOT_PASSED_ON = ("LANGCHAIN_", "LANGGRAPH_", "LANGSMITH_", "PYTEST_", "PYTHON")


@dataclass(frozen=True, slots=True)
class Mode:
    """Name a way to run a suite, and the plugin that accelerates it if one does."""

    name: str
    plugin: str | None = None


PLAIN = Mode("plain")
ACTIVATED = Mode("activated", "held_activation")
GRAPHS = Mode("accelerated-graphs", "accelerated_graphs")


@dataclass(frozen=True, slots=True)
class Run:
    """Hold what one run of a suite gave.

    ``outcomes`` by test id; ``leaf_calls`` that the scheduler let run; ``bypassed`` leaf calls by
    place and reason; ``problems`` with the run itself, as sentences; its duration in seconds.
    """

    outcomes: Mapping[str, str]
    leaf_calls: int = 0
    bypassed: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Runner:
    """Run a suite that lies in ``place`` with the interpreter ``python``.

    A run gets ``workers`` processes, or with 0 its own alone, and ``run_limit_s`` seconds, each
    test of it ``test_limit_s``. What pytest prints is kept in ``logs``.
    """

    python: Path
    place: Path
    suite: Suite
    logs: Path
    workers: int = 2
    test_limit_s: float = TEST_LIMIT_S
    run_limit_s: float = RUN_LIMIT_S

    def run(self, mode: Mode) -> Run:
        """Run the whole suite."""
        return self._run(mode, self.suite.tests, self.workers, mode.name)

    def run_alone(self, mode: Mode, test: str) -> Run:
        """Run one test, given by its id."""
        return self._run(mode, test, 0, f"{mode.name}-alone")

    def _run(self, mode: Mode, target: str, workers: int, log: str) -> Run:
        self.logs.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        with (
            tempfile.TemporaryDirectory() as found,
            (self.logs / f"{log}.log").open("a") as output,
        ):
            line = [*self._line(mode, workers), target]
            code = _call(line, self.place, _variables(found), output.fileno(), self.run_limit_s)
            run = read_run(Path(found), code, 0 if mode.plugin is None else workers or 1)
        return replace(run, duration_s=round(time.monotonic() - began, 1))

    def _line(self, mode: Mode, workers: int) -> list[str]:
        line = [str(self.python), "-m", "pytest", "-p", "no:cacheprovider", "--tb=short"]
        line += ["-p", "outcomes_by_id", f"--timeout={self.test_limit_s}", *self.suite.arguments]
        line += ["-p", mode.plugin] if mode.plugin is not None else []
        return [*line, "-n", str(workers), "--dist=worksteal"] if workers else line


def read_run(found: Path, code: int | None, num_accelerated: int) -> Run:
    """Return the run that left its records in a folder.

    Args:
        found: the folder.
        code: pytest's exit code; None if it was ended from outside.
        num_accelerated: how many processes should at least have been accelerated.
    """
    lines = found / "outcomes.jsonl"
    records = map(json.loads, lines.read_text().splitlines()) if lines.exists() else ()
    outcomes = outcomes_of(records)
    counts = [json.loads(path.read_text()) for path in found.glob("leaves-*.json")]
    problems = _problems(code, outcomes)
    if len(counts) < num_accelerated:
        problems.append(f"{len(counts)} of {num_accelerated} processes were accelerated")
    return Run(
        outcomes=outcomes,
        leaf_calls=sum(worker["leaf_calls"] for worker in counts),
        bypassed=dict(sum((Counter(worker["bypassed"]) for worker in counts), Counter())),
        problems=tuple(problems),
    )


def _problems(code: int | None, outcomes: Mapping[str, str]) -> list[str]:
    problems: list[str] = []
    if code is None:
        hung = [test for test, outcome in outcomes.items() if outcome == UNFINISHED]
        problems.append(f"it took too long and was ended; unfinished: {', '.join(hung) or 'none'}")
    elif code not in (0, 1):
        problems.append(f"pytest ended with {code}, see its log")
    unread = [test for test in outcomes if "::" not in test]
    if unread:
        problems.append(f"these cannot be collected: {', '.join(unread)}")
    if not outcomes:
        problems.append("no test ran")
    return problems


def _variables(found: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(_NOT_PASSED_ON)}
    return {
        **kept,
        "CONFORMANCE_FOUND": found,
        "NO_DOCKER": "true",
        "PYTHONPATH": str(PLUGINS),
    }


def _call(
    line: Sequence[str], place: Path, variables: Mapping[str, str], output: int, limit_s: float
) -> int | None:
    """Run a command and return its exit code; past its limit end it and all it started."""
    process = subprocess.Popen(
        line,
        cwd=place,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
