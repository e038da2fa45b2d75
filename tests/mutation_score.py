"""The share of seeded faults that the tests of a room find: ``make mutation``.

A fault is planted in a copy of the checkout by cosmic-ray, and the tests of the room run until the
first fails. A sample is drawn from all faults by a seed, so that two commits are compared by equal
rules; results are appended to a file a fault at a time, and a run that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cosmic_ray.commands import init
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.testing import run_tests
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkerOutcome

ROOT = Path(__file__).parents[1]
SELECTED = "not slow and not bench and not processes"
#: A fault that makes a loop endless is found by the time limit of its test.
TIMEOUT_S = 400.0

#: tests of a room -> files that faults are planted in
FILES: dict[str, tuple[str, ...]] = {
    "tests/scheduler": tuple(
        f"rag_accel/scheduler/{name}.py" for name in ("dispatch", "queueing", "runs", "completions")
    ),
    "tests/kv": tuple(
        f"rag_accel/kv/{name}.py"
        for name in ("store", "locate", "eviction/lookahead", "eviction/half_life")
    ),
    "tests/interception": ("rag_accel/interception/leaf_call.py",),
}


def _faults(checkout: Path) -> Iterator[tuple[str, MutationSpec]]:
    """Return all faults of the files, each with the tests that ought to find it."""
    for tests, files in FILES.items():
        with use_db(":memory:", WorkDB.Mode.create) as database:
            init([checkout / file for file in files if (checkout / file).exists()], database, {})
            for item in database.work_items:
                for fault in item.mutations:
                    # In these files ``|`` stands in annotations, which nothing evaluates.
                    if "_BitOr_" not in fault.operator_name:
                        yield tests, fault


def _key(fault: MutationSpec, checkout: Path) -> str:
    file = Path(fault.module_path).relative_to(checkout)
    return (
        f"{file}:{fault.start_pos[0]}:{fault.start_pos[1]} {fault.operator_name} {fault.occurrence}"
    )


def _command(tests: str) -> str:
    return f"{sys.executable} -m pytest -x -m '{SELECTED}' {tests}"


def _use(checkout: Path) -> None:
    """Import the project from a checkout in the tests that this process starts."""
    os.chdir(checkout)
    paths = [checkout, *(checkout / name for name in ("integrations", "adapters", "demo"))]
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, paths))


def run(commit: str, size: int, seed: int, results: Path) -> None:
    """Plant a sample of ``size`` faults in a commit and append whether the tests find each.

    Raises:
        SystemExit: the tests fail without a fault.
    """
    done = {json.loads(line)["fault"] for line in _lines(results)}
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder, "checkout")
        subprocess.run(["git", "clone", "--quiet", ROOT, checkout], check=True)
        subprocess.run(["git", "checkout", "--quiet", commit], cwd=checkout, check=True)
        _use(checkout)
        faults = sorted(_faults(checkout), key=lambda pair: _key(pair[1], checkout))
        sample = random.Random(seed).sample(faults, min(size, len(faults)))
        if not done:
            for tests in FILES:
                outcome, output = run_tests(_command(tests), TIMEOUT_S)
                if outcome is not TestOutcome.SURVIVED:
                    raise SystemExit(f"{tests} fails without a fault:\n{output[-2000:]}")
        for tests, fault in sample:
            name = _key(fault, checkout)
            if name in done:
                continue
            result = mutate_and_test([fault], _command(tests), TIMEOUT_S)
            if result.worker_outcome is not WorkerOutcome.NORMAL:
                raise SystemExit(f"{name} could not be planted:\n{result.output}")
            row = {"fault": name, "tests": tests, "is_detected": result.is_killed}
            with results.open("a") as file:
                file.write(json.dumps(row) + "\n")


def _lines(results: Path) -> list[str]:
    return results.read_text().splitlines() if results.exists() else []


def report(results: Path) -> str:
    """Return the share of faults that were found, with its standard error, a line a room."""
    rows: list[dict[str, Any]] = [json.loads(line) for line in _lines(results)]
    lines = [
        f"{tests}: {_share([row for row in rows if row['tests'] == tests])}" for tests in FILES
    ]
    missed = [row["fault"] for row in rows if not row["is_detected"]]
    return "\n".join([*missed, *lines, f"all: {_share(rows)}"])


def _share(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "no fault"
    share = sum(row["is_detected"] for row in rows) / len(rows)
    error = math.sqrt(share * (1 - share) / len(rows))
    return f"{share:.3f} ± {error:.3f} of {len(rows)} faults"


def main() -> None:
    """Run a sample and print its report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commit", default="HEAD", help="the commit whose tests are judged")
    parser.add_argument("--size", type=int, default=300, help="faults in the sample")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=Path(".mutation.jsonl"))
    options = parser.parse_args()
    results = options.results.absolute()
    run(options.commit, options.size, options.seed, results)
    print(report(results))


if __name__ == "__main__":
    main()
