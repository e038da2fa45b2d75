"""Run the suites that the command line names, print what was found and keep it."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.environment import Environment, pins_of, prepare
from conformance.examine import Examination, examine
from conformance.report import save, table
from conformance.runs import ACTIVATED, GRAPHS, Mode, Runner
from conformance.sources import fetch
from conformance.suites import (
    HOME,
    ROOT,
    SUITES,
    ConformanceError,
    Suite,
    pinned_version,
    repinned,
)

_CORE = "langchain-core"


@dataclass(frozen=True, slots=True)
class Versions:
    """The pins of one environment, and the folder that holds all that belongs to it."""

    pins: str
    home: Path


def main(argv: Sequence[str] | None = None) -> int:
    """Run the suites; return 0 if they pass, 1 if not, 2 if they cannot be run."""
    arguments = _parser().parse_args(argv)
    modes = [GRAPHS] if arguments.accelerate_graphs else [ACTIVATED, GRAPHS]
    try:
        has_faults = [_has_faults(arguments, mode) for mode in modes]
    except ConformanceError as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    return int(any(has_faults))


def _has_faults(arguments: argparse.Namespace, mode: Mode) -> bool:
    """Run the suites in one mode, print and keep what was found, and tell whether they fail."""
    found = _examine_all(arguments, mode)
    if not found:
        return False
    print(table(found), flush=True)
    home = versions_of(arguments.langchain_core).home
    path = home / f"report-{mode.name}.json"
    save(path, mode.name, found)
    print(f"everything: {path}; what pytest printed: {home / 'logs'}")
    return any(examination.faults for examination in found)


def _parser() -> argparse.ArgumentParser:
    names = [suite.distribution for suite in SUITES]
    parser = argparse.ArgumentParser(prog="python -m conformance", description=__doc__)
    parser.add_argument("suites", metavar="SUITE", nargs="*", help=f"{' | '.join(names)}; or all")
    parser.add_argument("--workers", type=int, default=2, help="processes of a run; 0 is none more")
    parser.add_argument(
        f"--{_CORE}",
        metavar="VERSION",
        type=_version,
        help="another version than the pinned one, in an environment of its own",
    )
    parser.add_argument("--fresh", action="store_true", help="make kept plain runs anew")
    parser.add_argument(
        "--accelerate-graphs",
        action="store_true",
        help="only let StateGraph.compile() return accelerate(compiled), without activate()",
    )
    return parser


def _version(text: str) -> str:
    """Return a version as it is given; it becomes part of a folder's name."""
    if re.fullmatch(r"\d+(\.\w+)*", text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no version, such as 1.7.2")
    return text


def versions_of(core: str | None) -> Versions:
    """Return the pinned versions, or the same with another version of langchain-core."""
    pins = pins_of(ROOT)
    if core is None or core == pinned_version(_CORE, pins):
        return Versions(pins, HOME)
    return Versions(repinned(_CORE, core, pins), HOME / f"{_CORE}-{core}")


def _examine_all(arguments: argparse.Namespace, mode: Mode) -> list[Examination]:
    suites = _chosen(arguments.suites)
    versions = versions_of(arguments.langchain_core)
    versions.home.mkdir(parents=True, exist_ok=True)
    environment = prepare(ROOT, versions.home, versions.pins)
    return [
        _examine(suite, environment, versions, mode, arguments)
        for suite in suites
        if suite.builds_graphs or mode is not GRAPHS
    ]


def _chosen(names: Sequence[str]) -> list[Suite]:
    unknown = set(names) - {suite.distribution for suite in SUITES}
    if unknown:
        raise ConformanceError(f"no such suite: {', '.join(sorted(unknown))}; --help lists them")
    return [suite for suite in SUITES if not names or suite.distribution in names]


def _examine(
    suite: Suite,
    environment: Environment,
    versions: Versions,
    mode: Mode,
    arguments: argparse.Namespace,
) -> Examination:
    name, home = suite.distribution, versions.home
    version = pinned_version(name, versions.pins)
    place = fetch(environment.python, name, version, home)
    logs, kept = home / "logs" / mode.name / name, home / "plain" / f"{name}.json"
    shutil.rmtree(logs, ignore_errors=True)
    if arguments.fresh:
        kept.unlink(missing_ok=True)
    runner = Runner(environment.python, place, suite, logs, arguments.workers)
    return examine(runner, version, mode, kept, f"{environment.stamp}{suite}")
