"""Hold the result of a suite, and read and write it as JSON.

A file holds one result or a list of them. One result is
``{"suite", "environment", "emulated", "scripted", "sizes", "rows", "ratios"}``, a row is
``{"system", "workload", "metric", "median", "p99", "n", "low", "high", "samples"}``; ``p99`` is
null where it means nothing, ``low`` and ``high`` where one process ran. Where several did,
``"processes"`` lists what each of them found, whole, samples included; ratios and rows are medians
of theirs, ``"ranges"`` has the lowest and the highest value of each ratio, and sizes and
environment are those of the first. Files from before these fields existed can be read.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from bench.json_values import RERUN, check, check_keys
from bench.measure import Interval, median, percentile
from rag_accel.errors import ConfigError

#: Most samples that a row keeps.
MAX_SAMPLES = 100

_PROCESSES, _RANGES, _WRONG = "processes", "ranges", "wrong"
# A list without strings, objects or lists in it: numbers, which may stand on one line.
_NUMBERS = re.compile(r'\[\n([^\[\]{}"]*)\n\s*\]')
_UNKNOWN: Mapping[str, Any] = {"low": None, "high": None, "samples": []}

Key = tuple[str, str, str]
"""What a row is about: system, workload, metric."""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of one system.

    Args:
        system: who was measured, such as ``plain`` or ``accelerated``.
        workload: what it did.
        metric: what was measured, with its unit at the end of the name.
        median: the median, or the figure itself where ``n`` things gave one figure.
        p99: the 99th percentile, None where it means nothing.
        n: how many measurements or things the figure rests on.
        low: the lowest of several processes; None where one ran.
        high: the highest of them.
        samples: at most ``MAX_SAMPLES`` of the measurements, in order; empty where the figure is
            no summary, and where several processes ran: each of them keeps its own.
    """

    system: str
    workload: str
    metric: str
    median: float
    p99: float | None
    n: int
    low: float | None = None
    high: float | None = None
    samples: tuple[float, ...] = ()

    @property
    def key(self) -> Key:
        """Return what the row is about."""
        return self.system, self.workload, self.metric


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """What one run of a suite found.

    Args:
        suite: its name.
        rows: every figure.
        ratios: the figures that claims rest on; the suite's docstring defines them.
        emulated: whether an emulated accelerator took part.
        environment: where and when it ran; filled by whoever runs the suite.
        processes: what each process found, where several ran the suite; figures are medians.
        scripted: whether engines or models were sleeps of a scripted length.
        sizes: how much was measured, as JSON values; see ``sizes_of``.
        wrong: answers that are not what they must be (``bench.answers``); such a result is never
            written.
    """

    suite: str
    rows: tuple[Row, ...]
    ratios: Mapping[str, float]
    emulated: bool = False
    environment: Mapping[str, Any] = field(default_factory=dict)
    processes: tuple[SuiteResult, ...] = ()
    scripted: bool = False
    sizes: Mapping[str, Any] = field(default_factory=dict)
    wrong: tuple[str, ...] = ()

    def range_of(self, ratio: str) -> Interval | None:
        """Return the lowest and the highest value of a ratio; None where one process ran."""
        found = [one.ratios[ratio] for one in self.processes]
        return Interval(min(found), max(found)) if found else None


def row_of(system: str, workload: str, metric: str, values: Sequence[float]) -> Row:
    """Summarise measurements as a row."""
    return replace(median_row(system, workload, metric, values), p99=percentile(values, 0.99))


def median_row(system: str, workload: str, metric: str, values: Sequence[float]) -> Row:
    """Summarise measurements whose 99th percentile would mean nothing, such as ratios."""
    n, kept = len(values), sampled(values)
    return Row(system, workload, metric, median(values), None, n, samples=kept)


def sampled(values: Sequence[float]) -> tuple[float, ...]:
    """Return the values in six digits; of too many every second, third, ... in order."""
    step = math.ceil(len(values) / MAX_SAMPLES)
    return tuple(float(f"{value:.6g}") for value in values[:: max(1, step)])


def sizes_of(sizes: Any) -> dict[str, Any]:
    """Return a suite's sizes, a dataclass, as the JSON values that a file would give back."""
    return json.loads(json.dumps(asdict(sizes)))


def over_processes(results: Sequence[SuiteResult]) -> SuiteResult:
    """Return what several processes found that ran the same suite, as one result.

    Rows that one of them lacks (the rates that a search for a limit tried) stay with the others.

    Raises:
        ConfigError: if they do not have the same ratios.
    """
    first = results[0]
    _check_same_ratios(results, first.ratios, f"{first.suite} in several processes")
    medians = {name: median([one.ratios[name] for one in results]) for name in first.ratios}
    by_key = [{row.key: row for row in one.rows} for one in results]
    rows = tuple(
        _merged([one[row.key] for one in by_key])
        for row in first.rows
        if all(row.key in one for one in by_key)
    )
    return replace(first, rows=rows, ratios=medians, processes=tuple(results))


def _merged(rows: Sequence[Row]) -> Row:
    medians = [row.median for row in rows]
    tails = [row.p99 for row in rows if row.p99 is not None]
    return replace(
        rows[0],
        median=median(medians),
        p99=median(tails) if tails else None,
        n=sum(row.n for row in rows),
        low=min(medians),
        high=max(medians),
        samples=(),
    )


def as_json(result: SuiteResult) -> dict[str, Any]:
    """Return the result as plain JSON values."""
    data = {
        "suite": result.suite,
        "environment": dict(result.environment),
        "emulated": result.emulated,
        "scripted": result.scripted,
        "sizes": dict(result.sizes),
        "rows": [asdict(row) | {"samples": list(row.samples)} for row in result.rows],
        "ratios": dict(result.ratios),
    }
    if result.processes:
        ranges = ((name, result.range_of(name)) for name in result.ratios)
        data[_RANGES] = {name: [found.low, found.high] for name, found in ranges if found}
        data[_PROCESSES] = [as_json(one) for one in result.processes]
    return data


def from_json(data: Any, where: str) -> SuiteResult:
    """Return the result that ``as_json`` wrote.

    Raises:
        ConfigError: if something is missing, unknown or of the wrong type.
    """
    check(data, dict, where)
    # One process alone leaves the list out, an old file what did not exist; ranges follow.
    data = {_PROCESSES: [], "scripted": False, "sizes": {}, **data}
    data.pop(_RANGES, None)
    check_keys(data, {one.name for one in fields(SuiteResult)} - {_WRONG}, where)
    check(data["suite"], str, f"{where}: suite")
    check(data["environment"], dict, f"{where}: environment")
    check(data["emulated"], bool, f"{where}: emulated")
    check(data["scripted"], bool, f"{where}: scripted")
    check(data["sizes"], dict, f"{where}: sizes")
    check(data["rows"], list, f"{where}: rows")
    check(data["ratios"], dict, f"{where}: ratios")
    for name, value in data["ratios"].items():
        check(value, float, f"{where}: ratio {name}")
    check(data[_PROCESSES], list, f"{where}: {_PROCESSES}")
    rows = [_row(one, f"{where}: row {index}") for index, one in enumerate(data["rows"])]
    processes = [
        from_json(one, f"{where}: process {index}") for index, one in enumerate(data[_PROCESSES])
    ]
    _check_same_ratios(processes, data["ratios"], where)
    found = SuiteResult(**{**data, "rows": tuple(rows), _PROCESSES: tuple(processes)})
    if processes and all(row.low is None for row in rows):  # once they were those of the first
        return replace(found, rows=over_processes(processes).rows)
    return found


def save(path: Path, results: Sequence[SuiteResult]) -> None:
    """Write one result as an object, several as a list; parent folders are made.

    Raises:
        ConfigError: if an answer was wrong, or if two rows are about the same: a reader could not
            tell which of them holds.
    """
    for result in results:
        _require_right(result)
        _require_distinct(result)
    data = [as_json(result) for result in results]
    text = json.dumps(data[0] if len(data) == 1 else data, indent=1, allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_NUMBERS.sub(_on_one_line, text) + "\n", encoding="utf-8")


def _require_right(result: SuiteResult) -> None:
    if result.wrong:
        raise ConfigError(
            "wrong answers are not published",
            where=result.suite,
            found="; ".join(result.wrong),
            valid="answers that are what they must be",
            hint="mend what answers so, then measure again",
        )


def _require_distinct(result: SuiteResult) -> None:
    twice = [key for key, count in Counter(row.key for row in result.rows).items() if count > 1]
    if twice:
        raise ConfigError(
            "two rows are about the same",
            where=result.suite,
            found="; ".join(", ".join(key) for key in twice),
            valid="each system, workload and metric once",
            hint="name the system after what it was measured beside",
        )


def _on_one_line(match: re.Match[str]) -> str:
    return f"[{' '.join(match[1].split())}]"


def load(path: Path) -> list[SuiteResult]:
    """Read a file of results.

    Raises:
        ConfigError: if it is no such file.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            "no result file", where=str(path), found=error, valid="JSON", hint=RERUN
        ) from error
    return [from_json(one, str(path)) for one in (data if isinstance(data, list) else [data])]


def load_folder(folder: Path) -> list[SuiteResult]:
    """Read every ``.json`` file of a folder, by name.

    Raises:
        ConfigError: if one of them is no result file.
    """
    return [result for path in sorted(folder.glob("*.json")) for result in load(path)]


def _row(data: Any, where: str) -> Row:
    check(data, dict, where)
    data = {**_UNKNOWN, **data}
    check_keys(data, {one.name for one in fields(Row)}, where)
    for name in ("system", "workload", "metric"):
        check(data[name], str, f"{where}: {name}")
    check(data["median"], float, f"{where}: median")
    for name in ("p99", "low", "high"):
        if data[name] is not None:
            check(data[name], float, f"{where}: {name}")
    check(data["n"], int, f"{where}: n")
    check(data["samples"], list, f"{where}: samples")
    for value in data["samples"]:
        check(value, float, f"{where}: samples")
    return Row(**{**data, "samples": tuple(data["samples"])})


def _check_same_ratios(processes: Iterable[SuiteResult], wanted: Iterable[str], where: str) -> None:
    for number, one in enumerate(processes):
        check_keys(one.ratios, wanted, f"{where}: process {number}: ratios")
