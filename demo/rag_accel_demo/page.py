"""The findings of a run of the demo as a page: one file, without scripts and without a network."""

from __future__ import annotations

import contextlib
import html
import platform
import re
import tempfile
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from rag_accel.errors import ConfigError
from rag_accel.system.files import replaced_file
from rag_accel_demo.charts import Chart, Span, bar_chart, line_chart, timeline
from rag_accel_demo.findings import Findings
from rag_accel_demo.levels import EngineStep
from rag_accel_demo.local_model import LOCAL_HEAD, local_rows
from rag_accel_demo.report import HEAD, Sample, are_numbers, rows

NAME = "demo.html"
#: Of steps, in a timeline.
WINDOW_S = 1.0
PACKAGES = (
    *("rag-accel", "langchain-core", "langchain-huggingface", "langchain-community", "faiss-cpu"),
    *("torch", "transformers", "sentence-transformers", "openvino", "numpy"),
)
STYLE = """
:root { color-scheme: light dark; --ink: #1c2026; --soft: #5a6270; --back: #ffffff;
  --line: #d9dde3; --card: #f3f5f8; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #a3abb8; --back: #14171c;
  --line: #343a44; --card: #1d2229; } }
body { margin: 0 auto; padding: 1rem; max-width: 52rem; background: var(--back); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
ol.findings { background: var(--card); border-radius: .5rem; padding: 1rem 1rem 1rem 2.2rem; }
figure { margin: 1rem 0; background: #ffffff; border-radius: .5rem; padding: .5rem;
  overflow-x: auto; }
figure svg { display: block; width: 100%; min-width: 30rem; height: auto; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid var(--line); }
td, th { white-space: nowrap; }
@media (max-width: 34rem) { td, th { padding: .2rem .25rem; font-size: .85rem; } }
.number { text-align: right; font-variant-numeric: tabular-nums; }
pre { background: var(--card); border-radius: .5rem; padding: .75rem; white-space: pre-wrap; }
blockquote { margin: .5rem 0; padding-left: .75rem; border-left: 3px solid var(--line);
  color: var(--soft); white-space: pre-wrap; } .note { color: var(--soft); }
"""


def writable_page(given: Path | None) -> Path:
    """Return where the page will be written; a file that could not be is found out now.

    Args:
        given: the path asked for; by default ``demo.html`` in the current folder, or in the
            folder for temporary files where the current one takes none.

    Raises:
        ConfigError: if no file can be written at the path asked for.
    """
    path = Path.cwd() / NAME if given is None else given.expanduser().absolute()
    spare = Path(tempfile.gettempdir()) / NAME
    reason = _why_not(path)
    if reason and given is None:
        path, reason = spare, _why_not(spare)
    if reason:
        raise ConfigError(
            "the page of the demo cannot be written",
            where=str(path),
            found=reason,
            valid="a file in a folder that exists and can be written to",
            hint=f"give another place, such as --html {spare}",
        )
    return path


def _why_not(path: Path) -> str:
    if path.is_dir():
        return "a folder"
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            return ""
    except OSError as error:
        return error.strerror or type(error).__name__


def write_page(
    path: Path, findings: Findings, samples: Sequence[Sample], explained: str, about: str
) -> None:
    """Write the page in one step, in place of a page of an earlier run.

    Args:
        path: of the file.
        findings: whatever was measured.
        samples: questions with their answers.
        explained: how each part of the program runs.
        about: what was asked of how many documents.

    Raises:
        OSError: if the file cannot be written.
    """
    text = page(findings, samples, explained, about)
    with replaced_file(path) as file:
        file.write(text.encode())


def page(findings: Findings, samples: Sequence[Sample], explained: str, about: str) -> str:
    """Return the page; every text in it is escaped. For the arguments see ``write_page``."""
    title = f"rag-accel demo, {findings.run} run"
    parts = [
        f"<h1>{_text(title)}</h1>",
        f'<p class="note">{_text(about)}</p>',
        '<ol class="findings">',
        *(f"<li>{_text(line)}</li>" for line in findings.lines()),
        "</ol>",
        "<h2>Throughput and latency</h2>",
        _table(HEAD, rows(findings.levels)),
        *map(_figure, _level_charts(findings)),
        *_local_model(findings),
        *_timelines(findings),
        "<h2>The program and the engine of each part</h2>",
        f"<pre>{_text(explained)}</pre>",
        "<h2>Questions and answers</h2>",
        *map(_sample, samples),
        "<h2>Measured on</h2>",
        f"<p>{_text(findings.machine)}</p>",
        _table(("package", "version"), list(_versions())),
    ]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8"/>',
            '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
            f"<title>{_text(title)}</title>",
            f"<style>{STYLE}</style>",
            "</head>",
            "<body>",
            *parts,
            "</body>",
            "</html>",
            "",
        ]
    )


def _level_charts(findings: Findings) -> Iterator[Chart]:
    levels = findings.levels
    fewest = min(len(level.questions) for level in levels)
    caption = f"{findings.machine}; {findings.run}, n = {fewest} or more answers a bar or point"
    arms = {
        "plain": [level.plain for level in levels],
        "accelerated": [level.accelerated for level in levels],
    }
    yield bar_chart(
        "Answers per second",
        [_users(level.users) for level in levels],
        {name: [load.throughput_rps for load in loads] for name, loads in arms.items()},
        "answers per second",
        caption,
    )
    for title, share in (("Median latency", 0.5), ("Latency, 99th percentile", 0.99)):
        yield line_chart(
            title,
            [level.users for level in levels],
            {name: [load.percentile_ms(share) for load in loads] for name, loads in arms.items()},
            "users at once",
            "ms",
            caption,
        )


def _local_model(findings: Findings) -> Iterator[str]:
    if not findings.local:
        return
    levels = findings.local
    fewest = min(len(level.questions) for level in levels)
    caption = f"{findings.machine}; {findings.run}, n = {fewest} or more answers a bar"
    groups = [_users(level.users) for level in levels]
    yield "<h2>A language model of this machine</h2>"
    yield _table(LOCAL_HEAD, local_rows(levels))
    for title, unit, what in (
        ("Tokens per second, all users", "tokens per second", "tokens_per_s"),
        ("Time to the first text of an answer", "seconds", "mean_first_s"),
    ):
        series = {
            "transformers": [getattr(level.plain, what) for level in levels],
            "accelerated": [getattr(level.accelerated, what) for level in levels],
        }
        yield _figure(bar_chart(title, groups, series, unit, caption))


def _timelines(findings: Findings) -> Iterator[str]:
    runs = [(f"the chain, {_users(level.users)}", level.steps) for level in findings.levels[-1:]]
    runs += [
        (f"the local model, {_users(level.users)}", level.steps) for level in findings.local[-1:]
    ]
    drawn = [(name, one_second(steps)) for name, steps in runs]
    if any(spans for _, spans in drawn):
        yield "<h2>One second of the engines</h2>"
        yield (
            '<p class="note">The second whose steps worked for most requests. '
            "A bar is a step; its number counts its requests.</p>"
        )
    for name, spans in drawn:
        if spans:
            yield _figure(timeline(f"Steps of {name}", spans, findings.machine))


def one_second(steps: Sequence[EngineStep]) -> list[Span]:
    """Return the steps that began in a run's fullest second, which cuts off those that go on.

    It is the second whose steps worked for the most requests, each step's added up.
    """
    ordered = sorted(steps, key=lambda step: step.start_s)
    begins = [step.start_s for step in ordered]
    windows = [ordered[at : bisect_left(begins, begins[at] + WINDOW_S)] for at in range(len(steps))]
    fullest = max(windows, key=lambda window: sum(step.requests for step in window), default=[])
    return [
        Span(
            step.engine,
            step.start_s - fullest[0].start_s,
            min(step.end_s - fullest[0].start_s, WINDOW_S),
            step.requests,
        )
        for step in fullest
    ]


def _sample(sample: Sample) -> str:
    cited = [
        f"<details><summary>[{citation.number}] {_text(citation.document)}</summary>"
        f"<blockquote>{_text(citation.text)}</blockquote></details>"
        for citation in sample.citations
    ]
    question, answer = _text(sample.question), _text(sample.answer)
    return f"<h3>{question}</h3>\n<p>{answer}</p>\n" + "\n".join(cited)


def _figure(chart: Chart) -> str:
    # Groups of several drawings have the same ids, and nothing refers to them.
    return f"<figure>{re.sub(r' id=.[a-z]+_[0-9]+.', '', chart.svg())}</figure>"


def _table(head: Sequence[str], found: Sequence[Sequence[str]]) -> str:
    numbers = are_numbers(found)

    def line(tag: str, row: Sequence[str]) -> str:
        starts = [f'<{tag} class="number">' if number else f"<{tag}>" for number in numbers]
        cells = zip(starts, row, strict=True)
        return f"<tr>{''.join(f'{start}{_text(text)}</{tag}>' for start, text in cells)}</tr>"

    lines = [line("th", head), *(line("td", row) for row in found)]
    return "\n".join(['<div class="wide"><table>', *lines, "</table></div>"])


def _versions() -> Iterator[tuple[str, str]]:
    yield "Python", platform.python_version()
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            yield name, metadata.version(name)


def _users(count: int) -> str:
    return f"{count} user{'s' * (count > 1)}"


def _text(text: str) -> str:
    return html.escape(text)
