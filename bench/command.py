"""Run suites from the command line, print what they found and keep it."""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.environment import read_environment
from bench.plots import draw
from bench.processes import appendable, combined
from bench.report import report
from bench.results import SuiteResult, load, save
from bench.suites import Suite, load_suite, suite_names
from rag_accel.errors import ConfigError, RagAccelError

ALL = "all"
QUICK_LIMIT_S, FULL_LIMIT_S = 600, 3600
_ROOT = Path(__file__).resolve().parent.parent


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the arguments name.

    Returns:
        0; 1 if an answer was wrong or a process of a suite failed; 2 on an error.
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.append and (arguments.suite == ALL or not arguments.json):
        parser.error("--append needs one SUITE and --json FILE")
    # Nothing is fetched, and both arms run under the same settings: those the environment records.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.basicConfig(level=logging.WARNING, format="  %(message)s", stream=sys.stderr)
    logging.getLogger("bench").setLevel(logging.INFO)
    try:
        if arguments.append:
            return _run_more(arguments)
        if arguments.suite == ALL:
            return _run_processes(suite_names(), arguments)
        if arguments.processes > 1:
            return _run_processes([arguments.suite], arguments)
        return _run_one(arguments)
    except (RagAccelError, ImportError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Run benchmark suites.")
    parser.add_argument("suite", metavar="SUITE", choices=[*suite_names(), ALL], help=_choices())
    parser.add_argument("--quick", action="store_true", help="at most 10 minutes a suite")
    parser.add_argument(
        "--processes",
        type=_count,
        default=1,
        metavar="N",
        help="run a suite in N fresh processes, one after another; medians and ranges are kept",
    )
    parser.add_argument(
        "--set",
        type=_setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="give a suite that has parameters another value; may be repeated",
    )
    parser.add_argument(
        "--append",
        action="store_true",
        help="add the processes to those in FILE, if they measure the same code in the same place",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw the figures there")
    return parser


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _choices() -> str:
    return " | ".join([*suite_names(), ALL])


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def _run_one(arguments: argparse.Namespace, old: SuiteResult | None = None) -> int:
    suite = load_suite(arguments.suite)
    environment = read_environment(arguments.quick)
    started = time.monotonic()
    found = _found(suite, arguments)
    environment["duration_s"] = round(time.monotonic() - started, 1)
    result = replace(found, environment=environment)
    print(report(result), flush=True)
    if result.wrong:
        lines = "\n".join(f"  {one}" for one in result.wrong)
        print(f"bench: wrong answers in {arguments.suite}:\n{lines}", file=sys.stderr)
        return 1
    _keep([result] if old is None else [combined([old, result])], arguments)
    return 0


def _found(suite: Suite, arguments: argparse.Namespace) -> SuiteResult:
    if not arguments.set:
        return suite.run(arguments.quick)
    configured = getattr(suite, "configured", None)
    if configured is None:
        raise ConfigError(
            "a suite without parameters",
            where=arguments.suite,
            found=", ".join(name for name, _ in arguments.set),
            hint="run it without --set",
        )
    return suite.run(arguments.quick, configured(arguments.quick, dict(arguments.set)))


def _run_more(arguments: argparse.Namespace) -> int:
    """Add processes to those that a file holds; whether it may be done is known before they run."""
    here = read_environment(arguments.quick)
    old = appendable(arguments.json, arguments.suite, here)
    if arguments.processes == 1:
        return _run_one(arguments, old)
    found = _run_suite(arguments.suite, arguments)
    if found is None:
        return 1
    _keep([found if old is None else combined([old, found])], arguments)
    return 0


def _run_processes(names: Sequence[str], arguments: argparse.Namespace) -> int:
    """Run each suite in processes of its own, so that none meets what another left behind."""
    results: list[SuiteResult] = []
    failed: list[str] = []
    for name in names:
        found = _run_suite(name, arguments)
        if found is None:
            failed.append(name)
        else:
            results.append(found)
    if results:
        _keep(results, arguments)
    if failed:
        print(f"bench: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _run_suite(name: str, arguments: argparse.Namespace) -> SuiteResult | None:
    """Run one suite in as many processes as wanted; None as soon as one of them fails."""
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
    try:
        ended = subprocess.run(line, cwd=_ROOT, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        print(f"bench: {name} took more than {limit_s} s", file=sys.stderr)
        return False
    return ended.returncode == 0


def _keep(results: Sequence[SuiteResult], arguments: argparse.Namespace) -> None:
    try:
        if arguments.json:
            save(arguments.json, results)
        if arguments.plots:
            for result in results:
                draw(result, arguments.plots)
    except OSError as error:
        raise ConfigError("the results cannot be written", found=error) from error
