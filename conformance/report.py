"""Show what was found: a table with the names below it, and the same as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conformance.examine import Examination
from conformance.outcomes import FAILED, PASSED, SKIPPED, count
from conformance.runs import Run

_HEAD = (
    "suite",
    "tests",
    "plain passed/failed/skipped",
    "accelerated passed/failed/skipped",
    "newly failing",
    "leaf calls",
    "bypassed",
)
#: How many names of each kind are printed; the JSON file has all.
_MOST_NAMES = 20


def table(found: Sequence[Examination]) -> str:
    """Return one row per suite."""
    rows = [_HEAD, *(_row(examination) for examination in found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(map(str.rjust, row[1:], widths[1:]))]) for row in rows
    ]
    return "\n".join([*lines, *_names(found)])


def save(path: Path, mode: str, found: Sequence[Examination]) -> None:
    """Write everything but the outcomes of tests that passed both times."""
    report = {"mode": mode, "suites": [_record(examination) for examination in found]}
    path.write_text(json.dumps(report, indent=1) + "\n")


def _row(found: Examination) -> tuple[str, ...]:
    return (
        f"{found.suite} {found.version}",
        str(_num_tests(found)),
        _figures(found.plain),
        _figures(found.accelerated),
        str(len(found.comparison.newly_failing)),
        str(found.accelerated.leaf_calls),
        str(sum(found.bypassed.values())),
    )


def _figures(run: Run) -> str:
    counts = count(run.outcomes)
    return " / ".join(str(counts[outcome]) for outcome in (PASSED, FAILED, SKIPPED))


def _num_tests(found: Examination) -> int:
    return len({*found.plain.outcomes, *found.accelerated.outcomes})


def _names(found: Sequence[Examination]) -> list[str]:
    lines: list[str] = []
    for examination in found:
        comparison = examination.comparison
        for what, names in (
            ("does not pass", examination.faults),
            ("passed when run alone", comparison.flaky),
            ("failed plainly", comparison.failing_plain),
        ):
            lines += [f"{examination.suite}: {what}: {name}" for name in names[:_MOST_NAMES]]
            if len(names) > _MOST_NAMES:
                lines.append(f"{examination.suite}: {what}: {len(names) - _MOST_NAMES} more")
    return lines


def _record(found: Examination) -> dict[str, Any]:
    comparison = found.comparison
    return {
        "suite": found.suite,
        "version": found.version,
        "tests": _num_tests(found),
        "plain": {**count(found.plain.outcomes), "duration_s": found.plain.duration_s},
        "accelerated": {
            **count(found.accelerated.outcomes),
            "duration_s": found.accelerated.duration_s,
        },
        "newly_failing": comparison.newly_failing,
        "flaky": comparison.flaky,
        "failing_plain": comparison.failing_plain,
        "leaf_calls": found.accelerated.leaf_calls,
        "bypassed": found.bypassed,
        "faults": found.faults,
    }
