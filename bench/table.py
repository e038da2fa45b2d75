"""Write the results into the documents from result files: ``python -m bench.table``.

All of them stand in ``docs/results.md`` between ``<!-- results -->`` and ``<!-- /results -->``,
what the README claims stands there between ``<!-- headlines -->`` and ``<!-- /headlines -->``; the
rest of both files stays.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.report import figure, labels, medians, range_text, spread, surroundings
from bench.results import Row, SuiteResult, load_folder
from bench.suites import ratio_definitions
from rag_accel.errors import ConfigError, RagAccelError

BEGIN, END = "<!-- results -->", "<!-- /results -->"
HEADLINES = ("<!-- headlines -->", "<!-- /headlines -->")

#: What the README claims: in words, and the ratio that says so, by suite.
CLAIMS: Mapping[tuple[str, str], str] = {
    ("demo", "demo_throughput_64"): "answers per second of the demo's chain, 64 users",
    ("demo", "demo_p99_64"): "its 99th percentile of latency (lower is better)",
    ("demo", "demo_p99_1"): "the same for one user (lower is better)",
    ("demo", "demo_vs_best_peer"): "answers per second of the demo's chain, 64 users",
    ("embedding_concurrency", "embedding_throughput_64"): "texts embedded per second, 64 callers",
    ("embedding_concurrency", "embedding_vs_best_peer"): "texts embedded per second, 64 callers",
    ("embedding_concurrency", "rerank_vs_plain"): "pairs reranked per second, 64 callers",
    ("stepping", "exact_vs_sq8_refine_b64"): "speed of 64 exact searches, least nprobe",
    ("mixed_workflows", "rate_vs_langchain"): "requests per second within the latency limit",
    ("mixed_workflows", "rate_vs_staged_sq8_refine"): "the same",
    ("advanced_rag", "vs_hand_parallel_langgraph"): "speed of one request of document QA",
    ("langgraph_depth", "langgraph_depth_vs_plain_4"): "time of a LangGraph of depth, four users "
    "(lower is better)",
    (
        "overhead",
        "nothing_helps_16_mean",
    ): "latency where nothing helps, 16 users (lower is better)",
}
_ROOT = Path(__file__).resolve().parent.parent


def main(argv: Sequence[str] | None = None) -> int:
    """Rewrite the table in place."""
    parser = argparse.ArgumentParser(prog="python -m bench.table", description=__doc__)
    parser.add_argument("page", type=Path, nargs="?", default=_ROOT / "docs" / "results.md")
    parser.add_argument("--readme", type=Path, default=_ROOT / "README.md")
    parser.add_argument("--results", type=Path, default=_ROOT / "bench" / "results")
    arguments = parser.parse_args(argv)
    try:
        results = load_folder(arguments.results)
        write_table(arguments.page, results)
        write_between(arguments.readme, HEADLINES, headlines(results))
    except (RagAccelError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    return 0


def write_table(page: Path, results: Sequence[SuiteResult]) -> None:
    """Replace what stands between the markers.

    Raises:
        ConfigError: if there are no results, or the markers are not there once and in order.
    """
    if not results:
        raise ConfigError("no results to write", hint="python -m bench SUITE --json FILE first")
    write_between(page, (BEGIN, END), table(results))


def write_between(page: Path, marks: tuple[str, str], written: str) -> None:
    """Replace what stands between two marks.

    Raises:
        ConfigError: if they are not there once and in order.
    """
    first, last = marks
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end or first in rest or last in before + after:
        raise ConfigError(
            "no place for the results table",
            where=str(page),
            valid=f"{first} and below it {last}, each once",
        )
    page.write_text(f"{before}{first}\n{written}\n{last}{after}", encoding="utf-8")


def headlines(results: Sequence[SuiteResult]) -> str:
    """Return what the README claims, as far as it was measured: claim, factor, opponent, suite."""
    by_suite = {result.suite: result for result in results}
    lines = ["| claim | factor | suite |", "| --- | ---: | --- |"]
    for (suite, ratio), claim in CLAIMS.items():
        result = by_suite.get(suite)
        if result is None or ratio not in result.ratios:
            continue
        against = ratio_definitions(suite)[ratio].partition(":")[0]
        value = f"{figure(result.ratios[ratio])}{spread(result, ratio)}"
        lines.append(f"| {claim}, {_cell(against)} | {value} | `{suite}` |")
    return "\n".join(lines)


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
