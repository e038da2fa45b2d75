"""Write a result for people: its surroundings, its ratios with their meaning, its rows."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from bench.results import Row, SuiteResult
from bench.suites import ratio_definitions
from rag_accel.engines.llm.emulated_table import MODELLED

EMULATED = f"with an emulated accelerator ({MODELLED})"
_HEAD = ("workload", "metric", "system", "median", "p99", "n")


def report(result: SuiteResult) -> str:
    """Return the whole result as text."""
    title = f"{result.suite} {EMULATED}" if result.emulated else result.suite
    lines = [title, "=" * len(title), surroundings(result), ""]
    if result.processes:
        lines += [f"Ratios: {medians(result)}. Figures: of the first process.", ""]
    definitions = ratio_definitions(result.suite)
    for name, value in result.ratios.items():
        lines.append(f"{name} = {figure(value)}{spread(result, name)}")
        meaning = definitions.get(name, "not defined any more")
        lines += textwrap.wrap(meaning, 96, initial_indent="    ", subsequent_indent="    ")
    return "\n".join([*lines, "", *_columns(result.rows)])


def surroundings(result: SuiteResult) -> str:
    """Return on one line where, when and how the result was measured."""
    found = result.environment
    parts = [
        "quick run" if found.get("quick") else "full run",
        str(found.get("date", "no date")),
        str(found.get("cpu", "unknown processor")),
        f"{found.get('cores', '?')} cores",
        f"Python {found.get('python', '?')}",
        f"load average at start {(found.get('load_average') or ['?'])[0]}",
    ]
    if result.processes:
        parts.append(f"the first of {len(result.processes)} processes")
    return ", ".join(parts)


def medians(result: SuiteResult) -> str:
    """Say what the ratios of several processes are."""
    return f"median (lowest to highest) of {len(result.processes)} processes"


def spread(result: SuiteResult, ratio: str) -> str:
    """Return the range of a ratio over several processes, in brackets; nothing for one process."""
    found = result.range_of(ratio)
    return f" ({figure(found.low)} to {figure(found.high)})" if found else ""


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
        *(figure(row.median), figure(row.p99), str(row.n)),
    )
