"""Write a result for people: its surroundings, its ratios with their meaning, its rows.

``python -m bench.report FILE`` prints all that a result file holds.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from bench.emulated.table import MODELLED
from bench.results import Row, SuiteResult, load
from bench.suites import ratio_definitions
from rag_accel.errors import RagAccelError

EMULATED = f"with an emulated accelerator ({MODELLED})"
TINY = "on a processor, tiny shapes: proves the command, no figures"
SCRIPTED = "with engines and models that sleep as a script says"
PARTLY = "in part as a script says:"
_HEAD = ("workload", "metric", "system", "median", "p99", "n")


def main(argv: Sequence[str] | None = None) -> int:
    """Print every result of a file; return 2 if there is none."""
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=__doc__)
    parser.add_argument("file", type=Path)
    arguments = parser.parse_args(argv)
    try:
        results = load(arguments.file)
    except RagAccelError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    print("\n\n".join(map(report, results)))
    return 0


def report(result: SuiteResult) -> str:
    """Return the whole result as text."""
    title = " ".join([result.suite, *labels(result)])
    lines = [title, "=" * len(title), surroundings(result), ""]
    if result.num_processes > 1:
        lines += [f"Ratios and figures: {medians(result)}.", ""]
    definitions = ratio_definitions(result.suite)
    for name, value in result.ratios.items():
        lines.append(f"{name} = {figure(value)}{spread(result, name)}")
        meaning = definitions.get(name, "not defined any more")
        lines += textwrap.wrap(meaning, 96, initial_indent="    ", subsequent_indent="    ")
    return "\n".join([*lines, "", *_columns(result.rows)])


def labels(result: SuiteResult) -> list[str]:
    """Return what a reader must know of a result before its figures: what was no real machine."""
    is_tiny = bool(result.environment.get("tiny"))
    told = f"{PARTLY} {result.scripted}" if isinstance(result.scripted, str) else SCRIPTED
    return [EMULATED] * result.emulated + [told] * bool(result.scripted) + [TINY] * is_tiny


def surroundings(result: SuiteResult) -> str:
    """Return on one line where, when and how the result was measured."""
    found = result.environment
    parts = [
        "quick run" if found.get("quick") else "full run",
        str(found.get("date", "no date")),
        str(found.get("cpu", "unknown processor")),
        f"{found.get('cores', '?')} cores",
        *map(str, found.get("cards", [])),
        f"Python {found.get('python', '?')}",
        f"load average at start {(found.get('load_average') or ['?'])[0]}",
    ]
    if commit := found.get("commit"):
        parts.append(f"commit {commit[:10]}{' with changes' if found.get('is_dirty') else ''}")
    if result.num_processes > 1:
        parts.append(f"the first of {result.num_processes} processes")
    return ", ".join(parts)


def medians(result: SuiteResult) -> str:
    """Say what the ratios of several processes are."""
    return f"median (lowest to highest) of {result.num_processes} processes"


def spread(result: SuiteResult, ratio: str) -> str:
    """Return the range of a ratio over processes, or its interval within one, in brackets."""
    if found := result.range_of(ratio):
        return f" ({figure(found.low)} to {figure(found.high)})"
    if found := result.interval_of(ratio):
        return f" (95 %: {figure(found.low)} to {figure(found.high)})"
    return ""


def range_text(row: Row) -> str:
    """Return the range of a row over several processes, in brackets; nothing for one process."""
    found = row.range
    if found is None or found.low == found.high:
        return ""
    return f" [{figure(found.low)} to {figure(found.high)}]"


def figure(value: float | None) -> str:
    """Return a number with four significant digits; nothing for None."""
    if value is None:
        return ""
    whole = abs(value) >= 1000 or value == int(value)
    return f"{value:.0f}" if whole else f"{value:.4g}"


def _columns(rows: Sequence[Row]) -> list[str]:
    cells = [_HEAD, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEAD))]
    return [
        "  ".join(
            cell.ljust(width) if column < 3 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]


def _cells(row: Row) -> tuple[str, ...]:
    return (
        *(row.workload, row.metric, row.system),
        *(f"{figure(row.median)}{range_text(row)}", figure(row.p99), str(row.n)),
    )


if __name__ == "__main__":
    sys.exit(main())
