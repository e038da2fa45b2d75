"""Run a suite in fresh processes, and keep what they found."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.environment import wait_until_quiet
from bench.process_tree import run_tree
from bench.processes import combined
from bench.report import report
from bench.results import SuiteResult, load, save
from rag_accel.errors import ConfigError

QUICK_LIMIT_S, FULL_LIMIT_S = 540, 3600
_ROOT = Path(__file__).resolve().parent.parent


def run_suite(name: str, arguments: argparse.Namespace) -> SuiteResult | None:
    """Run one suite in as many processes as wanted; None as soon as one of them fails."""
    if arguments.when_quiet:
        wait_until_quiet()
    found: list[SuiteResult] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.json"
        for _ in range(arguments.processes):
            if not _run_process(name, arguments, path):
                return None
            found += load(path)
    result = combined(found)
    if result.num_processes > 1:
        print(report(result), flush=True)
    return result


def _run_process(name: str, arguments: argparse.Namespace, path: Path) -> bool:
    limit_s = QUICK_LIMIT_S if arguments.quick else FULL_LIMIT_S
    line = [sys.executable, "-m", "bench", name, "--json", str(path)]
    line += ["--quick"] * arguments.quick
    line += [f"--set={one}={value}" for one, value in arguments.set]
    code = run_tree(line, _ROOT, limit_s)
    if code is None:
        print(f"bench: {name} took more than {limit_s} s", file=sys.stderr)
    return code == 0


def keep(results: Sequence[SuiteResult], json: Path | None) -> None:
    """Write results into a file, where that is wanted.

    Raises:
        ConfigError: if a place cannot be written.
    """
    try:
        if json:
            save(json, results)
    except OSError as error:
        raise ConfigError("the results cannot be written", found=error) from error
