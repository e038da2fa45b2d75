"""Run one suite plainly and accelerated, and judge what differs."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from conformance.compare import Comparison, compare
from conformance.outcomes import FAILED, MISSING, count
from conformance.runs import PLAIN, Mode, Run, Runner


@dataclass(frozen=True, slots=True)
class Examination:
    """Hold what was found about one suite; ``bypassed`` is of all accelerated runs together."""

    suite: str
    version: str
    plain: Run
    accelerated: Run
    comparison: Comparison
    bypassed: Mapping[str, int] = field(default_factory=dict)

    @property
    def faults(self) -> tuple[str, ...]:
        """Return why this suite does not pass, as sentences; empty if it does."""
        faults = [f"the plain run: {problem}" for problem in self.plain.problems]
        faults += [f"the accelerated run: {problem}" for problem in self.accelerated.problems]
        if not self.accelerated.leaf_calls:
            faults.append("no leaf call passed the scheduler: nothing was accelerated")
        faults += [f"bypassed {times} times: {place}" for place, times in self.bypassed.items()]
        faults += [f"newly failing: {test}" for test in self.comparison.newly_failing]
        return tuple(faults)


def examine(runner: Runner, version: str, mode: Mode, kept: Path, stamp: str) -> Examination:
    """Run a suite plainly, unless a clean plain run of this environment is kept, and accelerated.

    Args:
        runner: runs the suite.
        version: of what the suite tests.
        mode: how it is accelerated.
        kept: a file for the plain run.
        stamp: changes with everything that a plain run depends on.
    """
    plain = load_run(kept, stamp)
    if plain is None:
        plain = _told(runner, PLAIN)
        keep_run(kept, plain, stamp)
    accelerated = _told(runner, mode)
    bypassed = Counter(accelerated.bypassed)

    def run_alone(test: str) -> str:
        _tell(f"{runner.suite.distribution}, alone: {test}")
        run = runner.run_alone(mode, test)
        bypassed.update(run.bypassed)
        return run.outcomes.get(test, MISSING) if not run.problems else FAILED

    comparison = compare(plain.outcomes, accelerated.outcomes, run_alone)
    name = runner.suite.distribution
    return Examination(name, version, plain, accelerated, comparison, dict(bypassed))


def keep_run(path: Path, run: Run, stamp: str) -> None:
    """Keep a run in which nothing failed. A test that failed by chance must not excuse it later."""
    if run.problems or count(run.outcomes)[FAILED]:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"stamp": stamp, "run": asdict(run)}))


def load_run(path: Path, stamp: str) -> Run | None:
    """Return the run that was kept under this stamp, if there is one that can be read."""
    try:
        record = json.loads(path.read_text())
        return Run(**record["run"]) if record["stamp"] == stamp else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _told(runner: Runner, mode: Mode) -> Run:
    name = f"{runner.suite.distribution}, {mode.name}"
    _tell(f"{name} ...")
    run = runner.run(mode)
    _tell(f"{name}: {len(run.outcomes)} tests in {run.duration_s:.0f} s")
    return run


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
