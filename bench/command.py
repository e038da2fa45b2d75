"""Run suites from the command line, print what they found and keep it."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bench.all_suites import INTERRUPTED_CODE, is_folder, run_all
from bench.environment import read_environment, wait_until_quiet
from bench.processes import appendable, combined
from bench.report import report
from bench.results import SuiteResult
from bench.running import keep, run_suite
from bench.suites import Suite, load_suite, suite_names
from rag_accel.errors import ConfigError, RagAccelError

ALL = "all"
#: Measures a device, with options of its own: no suite, and no part of ``all``.
GPU = "gpu"


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the arguments name.

    Returns:
        0; 1 if an answer was wrong or a process of a suite failed; 2 on an error; 130 if it was
        interrupted.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    is_gpu = words[:1] == [GPU]
    arguments = argparse.Namespace() if is_gpu else _parse(words)
    # Nothing is fetched, and both arms run under the same settings: those the environment records.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.basicConfig(level=logging.WARNING, format="  %(message)s", stream=sys.stderr)
    logging.getLogger("bench").setLevel(logging.INFO)
    with _interruptible():
        return _run_gpu(words[1:]) if is_gpu else _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    try:
        if arguments.append:
            return _run_more(arguments)
        if arguments.suite == ALL:
            return run_all(suite_names(), arguments)
        if arguments.processes > 1:
            return _run_processes(arguments)
        return _run_one(arguments)
    except (RagAccelError, ImportError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        return INTERRUPTED_CODE


def _run_gpu(words: Sequence[str]) -> int:
    from bench.gpu.command import main as measure_device

    try:
        return measure_device(words)
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        return INTERRUPTED_CODE


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does: what was started is ended, nothing is left."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread gets signals
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    arguments = parser.parse_args(argv)
    is_all = arguments.suite == ALL
    if arguments.append and (is_all or not arguments.json):
        parser.error("--append needs one SUITE and --json FILE")
    has_folder = is_all and arguments.json and is_folder(arguments.json)
    if arguments.resume and (not has_folder or arguments.set):
        parser.error("--resume needs all and --json FOLDER, without --set")
    return arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Run benchmark suites.",
        epilog="gpu measures a device: python -m bench gpu --help",
    )
    parser.add_argument("suite", metavar="SUITE", choices=[*suite_names(), ALL], help=_choices())
    parser.add_argument("--quick", action="store_true", help="at most 9 minutes a suite")
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
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the results there; with all into a file a suite, as soon as it has ended, if "
        "this is a folder or has no .json at its end",
    )
    parser.add_argument(
        "--when-quiet",
        action="store_true",
        help="begin each suite at a load average of at most 1.0, as published results must; wait "
        "for that at most ten minutes",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="with all and a folder: do not run what is there of the same code, place and form",
    )
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
    if arguments.when_quiet:
        wait_until_quiet()
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
    kept = result if old is None else combined([old, result])
    keep([kept], arguments.json)
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
    found = run_suite(arguments.suite, arguments)
    if found is None:
        return 1
    kept = found if old is None else combined([old, found])
    keep([kept], arguments.json)
    return 0


def _run_processes(arguments: argparse.Namespace) -> int:
    """Run one suite in several processes, and keep what they found if none fails."""
    found = run_suite(arguments.suite, arguments)
    if found is None:
        print(f"bench: failed: {arguments.suite}", file=sys.stderr)
        return 1
    keep([found], arguments.json)
    return 0
