"""Write the results into the documents from result files: ``python -m bench.table``.

Each suite has a page of its own in ``docs/results``. ``docs/results.md`` lists them between
``<!-- results -->`` and ``<!-- /results -->``, and has the claims between ``<!-- headlines -->``
and ``<!-- /headlines -->``; the README has the gains between ``<!-- gains -->`` and
``<!-- /gains -->``, and between ``<!-- demo -->`` and ``<!-- /demo -->`` what a run of the demo
found (``rag-accel demo --json > docs/demo_run.json``). Pages for users have figures in sentences
(``bench.inline_figures``). The rest of all files stays.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.claims import draw_demo, gains, headlines
from bench.inline_figures import documents, fill_pages
from bench.report import figure, labels, medians, range_text, spread, surroundings
from bench.results import Row, SuiteResult, load_folder
from bench.suites import ratio_definitions, suite_summary
from bench.together import plot
from rag_accel.errors import ConfigError, RagAccelError

BEGIN, END = "<!-- results -->", "<!-- /results -->"
HEADLINES = ("<!-- headlines -->", "<!-- /headlines -->")
GAINS_MARKS = ("<!-- gains -->", "<!-- /gains -->")
DEMO_MARKS = ("<!-- demo -->", "<!-- /demo -->")

#: Most lines of figures on a page; ``python -m bench.report`` prints all.
MAX_LINES = 40

_PICTURE, _DEMO = f"{plot.SUITE}.svg", "demo"
ROOT = Path(__file__).resolve().parent.parent


def main(argv: Sequence[str] | None = None) -> int:
    """Rewrite the pages, their list, the claims, the gains and the figures in sentences."""
    parser = argparse.ArgumentParser(prog="python -m bench.table", description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT, help="of the repository")
    arguments = parser.parse_args(argv)
    try:
        write_documents(arguments.root)
    except (RagAccelError, ImportError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    return 0


def write_documents(root: Path) -> None:
    """Write what ``bench/results`` and ``docs/demo_run.json`` of a repository hold into its pages.

    Raises:
        ConfigError: if there are no results, or a page has no place for them or names others.
    """
    results = load_folder(root / "bench" / "results")
    index, readme = root / "docs" / "results.md", root / "README.md"
    write_pages(index, results)
    write_between(index, HEADLINES, headlines(results))
    write_between(readme, GAINS_MARKS, gains(results))
    write_between(readme, DEMO_MARKS, demo_lines(root / "docs" / "demo_run.json"))
    fill_pages(documents(root), results)


def demo_lines(run: Path) -> str:
    """Return what a run of the demo found, from the output of ``rag-accel demo --json``."""
    found = json.loads(run.read_text(encoding="utf-8"))
    return "\n".join(f"- {line}" for line in found["findings"])


def write_pages(index: Path, results: Sequence[SuiteResult]) -> None:
    """Write a page for each result, into the folder named like the index, and list them there.

    Raises:
        ConfigError: if there are no results, or the index lacks its markers, once and in order.
    """
    if not results:
        raise ConfigError("no results to write", hint="python -m bench SUITE --json FILE first")
    folder = index.with_suffix("")
    write_between(index, (BEGIN, END), list_of_pages(results, folder.name))
    folder.mkdir(exist_ok=True)
    for result in results:
        (folder / f"{result.suite}.md").write_text(page(result), encoding="utf-8")
        if result.suite == plot.SUITE:
            plot.draw_worth(result, folder / _PICTURE)
        if result.suite == _DEMO:
            draw_demo(result, folder / f"{_DEMO}.svg")


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


def list_of_pages(results: Sequence[SuiteResult], folder: str) -> str:
    """Return a table of the suites that were measured: what each measures, when, and its page."""
    return "\n".join(
        [
            "| suite | what it measures | measured |",
            "| --- | --- | --- |",
            *(
                f"| [{one.suite}]({folder}/{one.suite}.md) | {_cell(suite_summary(one.suite))} "
                f"| {_cell(_when(one))} |"
                for one in results
            ),
        ]
    )


def _when(result: SuiteResult) -> str:
    found = result.environment
    run = "quick" if found.get("quick") else "full"
    processes = f"{result.num_processes} process{'es' * (result.num_processes > 1)}"
    return f"{str(found.get('date', 'no date'))[:10]}, {processes}, {run}"


def page(result: SuiteResult) -> str:
    """Return the page of a suite: what it measures and where, its ratios, the figures behind."""
    surrounded = f"Measured {', '.join([*labels(result), surroundings(result)])}."
    ratios = ["", *_ratios(result)] if result.ratios else []
    lines = [f"# {result.suite}", "", suite_summary(result.suite), "", surrounded, *ratios]
    if result.suite == plot.SUITE:
        lines += ["", f"![what each mechanism is worth]({_PICTURE})"]
    return "\n".join([*lines, *_figures(result), "", "[All results](../results.md)", ""])


def _ratios(result: SuiteResult) -> list[str]:
    meanings = ratio_definitions(result.suite)
    interval = "value (95 % interval)" if any(map(result.interval_of, result.ratios)) else "value"
    return [
        f"| ratio | {medians(result) if result.num_processes > 1 else interval} | what it is |",
        "| --- | ---: | --- |",
        *(
            f"| `{name}` | {figure(value)}{spread(result, name)} | {_cell(meaning)} |"
            for name, value in result.ratios.items()
            for meaning in [meanings.get(name, "")]
        ),
    ]


def _figures(result: SuiteResult) -> list[str]:
    """Return the section of figures: of metrics that say more than the ratios, the first lines."""
    if not result.rows:
        return []
    zero, repeated = _zero_metrics(result), _repeated_metrics(result)
    lines = _lines([row for row in result.rows if row.metric not in {*zero, *repeated}])
    shown = dict(list(lines.items())[:MAX_LINES])
    told = [_what(result)]
    if zero:
        told.append(f"Zero in every workload: {_names(zero)}.")
    if repeated:
        told.append(f"Left out, because they repeat the ratios: {_names(repeated)}.")
    if len(shown) < len(lines):
        told.append(f"These are {len(shown)} of {len(lines)} lines.")
    told.append(f"`python -m bench.report bench/results/{result.suite}.json` prints all figures.")
    return ["", "## Figures", "", " ".join(told), *_tables(shown)]


def _what(result: SuiteResult) -> str:
    if result.num_processes > 1:
        processes = f"{result.num_processes} processes"
        return (
            f"Each figure: median of {processes} [lowest to highest] (99th percentile), n in all."
        )
    return "Each figure: median (99th percentile), n."


def _names(metrics: Sequence[str]) -> str:
    return ", ".join(f"`{one}`" for one in metrics)


def _by_metric(rows: Sequence[Row]) -> Mapping[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.metric, []).append(row)
    return found


def _zero_metrics(result: SuiteResult) -> list[str]:
    """Return what was counted and never happened in any process, such as different answers."""
    return [
        metric
        for metric, rows in _by_metric(result.rows).items()
        if not any(value for row in rows for value in (row.median, *row.medians))
    ]


def _repeated_metrics(result: SuiteResult) -> list[str]:
    """Return the metrics all of whose figures are ratios of the result, by four digits."""
    ratios = {figure(value) for value in result.ratios.values() if not float(value).is_integer()}
    return [
        metric
        for metric, rows in _by_metric(result.rows).items()
        if {figure(row.median) for row in rows} <= ratios
    ]


_Lines = Mapping[tuple[str, str], Mapping[str, str]]
"""The cells of each workload and metric, by system."""


def _lines(rows: Sequence[Row]) -> _Lines:
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        p99 = "" if row.p99 is None else f" ({figure(row.p99)})"
        line = lines.setdefault((row.workload, row.metric), {})
        line[row.system] = f"{figure(row.median)}{range_text(row)}{p99}, n={row.n}"
    return lines


def _tables(lines: _Lines) -> list[str]:
    """Return a table for each set of systems that were measured alike, one column per system."""
    blocks: dict[tuple[str, ...], list[str]] = {}
    for (workload, metric), line in lines.items():
        cells = " | ".join([_cell(workload), _cell(metric), *line.values()])
        blocks.setdefault(tuple(line), []).append(f"| {cells} |")
    return [text for systems, block in blocks.items() for text in ["", *_head(systems), *block]]


def _head(systems: Sequence[str]) -> list[str]:
    return [
        f"| workload | metric | {' | '.join(map(_cell, systems))} |",
        f"| --- | --- |{' ---: |' * len(systems)}",
    ]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
