"""Run all suites, keep each result as soon as there is one, and say at the end what became of each.

One that fails or takes too long leaves the others theirs. An interruption ends the run: what was
measured until then is kept and told.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.claims import headlines
from bench.environment import read_environment
from bench.processes import appendable
from bench.report import figure
from bench.results import SuiteResult
from bench.running import keep, run_suite
from rag_accel.errors import ConfigError, RagAccelError

MEASURED, KEPT, MISSING, FAILED = "measured", "kept", "missing", "failed"
INTERRUPTED, NOT_RUN = "interrupted", "not run"
#: What a shell gives a command that an interruption ended.
INTERRUPTED_CODE = 130
_HEAD = ("suite", "seconds", "state", "first ratio")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one suite.

    Args:
        suite: its name.
        state: what was done.
        seconds: how long its processes took now; where it was kept, the measured one.
        result: what was found, if anything was.
    """

    suite: str
    state: str
    seconds: float | None = None
    result: SuiteResult | None = None


def is_folder(path: Path) -> bool:
    """Tell whether a place of results is a folder: one that exists, or a name without .json."""
    return path.is_dir() or path.suffix != ".json"


def run_all(names: Sequence[str], arguments: argparse.Namespace) -> int:
    """Run suites one after another and print what became of them.

    Returns:
        0, also where suites lacked what they measure; 1 if one failed; 130 if the run was
        interrupted.
    """
    folder = _folder(arguments.json)
    outcomes: list[Outcome] = []
    code = 0
    try:
        for name in names:
            outcomes.append(Outcome(name, INTERRUPTED))
            outcomes[-1] = _outcome(name, arguments, folder)
    except KeyboardInterrupt:
        code = INTERRUPTED_CODE
    outcomes += [Outcome(name, NOT_RUN) for name in names[len(outcomes) :]]
    results = [one.result for one in outcomes if one.result is not None]
    print(f"\n{summary(outcomes)}", flush=True)
    if results and folder is None:
        keep(results, arguments.json)
    if failed := [one.suite for one in outcomes if one.state == FAILED]:
        print(f"bench: failed: {', '.join(failed)}", file=sys.stderr)
    return code or int(bool(failed))


def _folder(json: Path | None) -> Path | None:
    """Return the folder of results, made if it is not there; None if there is none.

    Raises:
        ConfigError: if it cannot be made.
    """
    if json is None or not is_folder(json):
        return None
    try:
        json.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError("the results cannot be written", found=error) from error
    return json


def _outcome(name: str, arguments: argparse.Namespace, folder: Path | None) -> Outcome:
    path = folder / f"{name}.json" if folder else None
    if path and arguments.resume and (old := _kept(path, name, arguments)):
        return Outcome(name, KEPT, old.environment.get("duration_s"), old)
    started = time.monotonic()
    found = _measured(name, arguments, path)
    seconds = time.monotonic() - started
    state = FAILED if found is None else _state(found)
    return Outcome(name, state, seconds, found)


def _measured(name: str, arguments: argparse.Namespace, path: Path | None) -> SuiteResult | None:
    """Return what a suite found, kept if there is a place; None, and say why, if that failed."""
    try:
        found = run_suite(name, arguments)
        if found and path:
            keep([found], path)
    except RagAccelError as error:  # processes that do not fit together, or a full disk
        print(f"bench: {name}: {error}", file=sys.stderr)
        return None
    return found


def _kept(path: Path, name: str, arguments: argparse.Namespace) -> SuiteResult | None:
    """Return what a file holds if measuring now would measure the same; else None."""
    try:
        old = appendable(path, name, read_environment(arguments.quick))
    except ConfigError:  # of other code, another place or another form
        return None
    return old if old and old.num_processes >= arguments.processes else None


def _state(result: SuiteResult) -> str:
    lacks = [row.workload for row in result.rows if row.metric == MISSING]
    if lacks and len(lacks) == len(result.rows):
        return f"{MISSING}: {'; '.join(dict.fromkeys(lacks))}"
    return MEASURED


def summary(outcomes: Sequence[Outcome]) -> str:
    """Return a table of what became of each suite, and below it what the README would claim."""
    lines = [_HEAD, *map(_line, outcomes)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    claims = headlines([one.result for one in outcomes if one.result is not None])
    return "\n".join([*table, "", claims] if claims.count("\n") > 1 else table)


def _line(outcome: Outcome) -> tuple[str, ...]:
    seconds = "" if outcome.seconds is None else f"{outcome.seconds:.0f}"
    ratios = outcome.result.ratios if outcome.result else {}
    first = next((f"{name} = {figure(value)}" for name, value in ratios.items()), "")
    return outcome.suite, seconds, outcome.state, first
