"""Write the results table of the README from result files: ``python -m bench.table``.

It stands between ``<!-- results -->`` and ``<!-- /results -->``; the rest of the file stays.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.report import figure, labels, medians, range_text, spread, surroundings
from bench.results import Row, SuiteResult, load_folder
from bench.suites import ratio_definitions
from rag_accel.errors import ConfigError, RagAccelError

BEGIN, END = "<!-- results -->", "<!-- /results -->"
_ROOT = Path(__file__).resolve().parent.parent


def main(argv: Sequence[str] | None = None) -> int:
    """Rewrite the table in place."""
    parser = argparse.ArgumentParser(prog="python -m bench.table", description=__doc__)
    parser.add_argument("readme", type=Path, nargs="?", default=_ROOT / "README.md")
    parser.add_argument("--results", type=Path, default=_ROOT / "bench" / "results")
    arguments = parser.parse_args(argv)
    try:
        write_table(arguments.readme, load_folder(arguments.results))
    except (RagAccelError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    return 0


def write_table(readme: Path, results: Sequence[SuiteResult]) -> None:
    """Replace what stands between the markers.

    Raises:
        ConfigError: if there are no results, or the markers are not there once and in order.
    """
    if not results:
        raise ConfigError("no results to write", hint="python -m bench SUITE --json FILE first")
    text = readme.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in before + after:
        raise ConfigError(
            "no place for the results table",
            where=str(readme),
            valid=f"{BEGIN} and below it {END}, each once",
        )
    readme.write_text(f"{before}{BEGIN}\n{table(results)}\n{END}{after}", encoding="utf-8")


def table(results: Sequence[SuiteResult]) -> str:
    """Return all results as Markdown: the ratios in view, the figures behind them folded."""
    return "\n\n".join(_suite(result) for result in results)


def _suite(result: SuiteResult) -> str:
    label = "".join(f", {one}" for one in labels(result))
    whose = f" of {len(result.processes)} processes" if result.processes else ""
    return "\n".join(
        [
            f"**{result.suite}**{label}: {_cell(surroundings(result))}",
            "",
            *_ratios(result),
            "",
            f"<details><summary>All figures{whose}: {_what(result)}</summary>",
            "",
            *_figures(result.rows),
            "",
            "</details>",
        ]
    )


def _what(result: SuiteResult) -> str:
    if result.processes:
        return "median [lowest to highest] (99th percentile)"
    return "median (99th percentile)"


def _ratios(result: SuiteResult) -> list[str]:
    meanings = ratio_definitions(result.suite)
    return [
        f"| ratio | {medians(result) if result.processes else 'value'} | what it is |",
        "| --- | ---: | --- |",
        *(
            f"| `{name}` | {figure(value)}{spread(result, name)} | {_cell(meaning)} |"
            for name, value in result.ratios.items()
            for meaning in [meanings.get(name, "")]
        ),
    ]


def _figures(rows: Sequence[Row]) -> list[str]:
    """Return a table for each set of systems that were measured alike, one column per system."""
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        p99 = "" if row.p99 is None else f" ({figure(row.p99)})"
        line = lines.setdefault((row.workload, row.metric), {})
        line[row.system] = f"{figure(row.median)}{range_text(row)}{p99}, n={row.n}"
    blocks: dict[tuple[str, ...], list[str]] = {}
    for (workload, metric), line in lines.items():
        cells = " | ".join([_cell(workload), _cell(metric), *line.values()])
        blocks.setdefault(tuple(line), []).append(f"| {cells} |")
    return [text for systems, block in blocks.items() for text in [*_head(systems), *block, ""]][
        :-1
    ]


def _head(systems: Sequence[str]) -> list[str]:
    return [
        f"| workload | metric | {' | '.join(map(_cell, systems))} |",
        f"| --- | --- |{' ---: |' * len(systems)}",
    ]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
