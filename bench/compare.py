"""Show what changed between two result files: ``python -m bench.compare OLD NEW``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.environment import SAME_PLACE
from bench.report import figure
from bench.results import SuiteResult, load
from rag_accel.errors import RagAccelError


@dataclass(frozen=True, slots=True)
class Change:
    """One figure of two files; None where a file does not have it."""

    name: str
    old: float | None
    new: float | None

    @property
    def percent(self) -> float | None:
        """Return the change in percent of the old figure, where there is one."""
        if self.old is None or self.new is None or self.old == 0:
            return None
        return 100 * (self.new - self.old) / abs(self.old)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the changes of every ratio and every row's median."""
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    arguments = parser.parse_args(argv)
    try:
        old, new = load(arguments.old), load(arguments.new)
    except RagAccelError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    print("\n".join([*warnings(old, new), *map(_line, changes(old, new))]))
    return 0


def changes(old: Sequence[SuiteResult], new: Sequence[SuiteResult]) -> list[Change]:
    """Return the changes of all ratios, then of all medians, in the order of the old file."""
    before, after = _figures(old), _figures(new)
    names = [*before, *(name for name in after if name not in before)]
    return [Change(name, before.get(name), after.get(name)) for name in names]


def warnings(old: Sequence[SuiteResult], new: Sequence[SuiteResult]) -> list[str]:
    """Say where the surroundings of a suite differ, which makes absolute figures incomparable."""
    after = {result.suite: result.environment for result in new}
    return [
        f"warning: {result.suite}: {key} differs: "
        f"{result.environment.get(key)} and {after[result.suite].get(key)}"
        for result in old
        if result.suite in after
        for key in SAME_PLACE
        if result.environment.get(key) != after[result.suite].get(key)
    ]


def _figures(results: Sequence[SuiteResult]) -> Mapping[str, float]:
    ratios = {
        f"{result.suite}: {name}": value
        for result in results
        for name, value in result.ratios.items()
    }
    medians = {
        f"{result.suite}: {row.workload}, {row.metric}, {row.system}": row.median
        for result in results
        for row in result.rows
    }
    return ratios | medians


def _line(change: Change) -> str:
    percent = "" if change.percent is None else f"{change.percent:+.1f} %"
    old, new = figure(change.old) or "-", figure(change.new) or "-"
    return f"{old:>10} -> {new:>10}  {percent:>9}  {change.name}"


if __name__ == "__main__":
    sys.exit(main())
