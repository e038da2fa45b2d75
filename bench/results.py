"""Results of suites, and their files: summaries, without what was measured call by call.

A file holds one result or a list of them. One result is
``{"suite", "environment", "emulated", "scripted", "sizes", "rows", "ratios"}``, a row is
``{"system", "workload", "metric", "median", "n", "p99"}``, without ``p99`` where it means nothing.
``"intervals"`` has the 95 % interval, within this process, of each ratio that is an ``Estimate``.

Where several processes ran (``num_processes`` of the environment), every median is that of the
processes' medians, ``"ranges"`` has the lowest and the highest value of each ratio,
``"by_process"`` its value in each process, in the order in which they ran; a row also has ``low``,
``high``, ``medians`` and ``p99s``, the figures of each process. So a process can join a file
later. Sizes and environment are those of the first. Rows are written in ten digits.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from bench.json_values import RERUN, check, check_keys
from bench.measure import Estimate, Interval, median, percentile
from rag_accel.errors import ConfigError

_BY_PROCESS, _RANGES, _WRONG = "by_process", "ranges", "wrong"
_INTERVALS = "intervals"
_ROW, _DERIVED = ("system", "workload", "metric", "median", "n"), ("low", "high")

Key = tuple[str, str, str]
"""What a row is about: system, workload, metric."""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of one system.

    Args:
        system: what was measured, such as ``plain`` or ``accelerated``.
        workload: what it did.
        metric: what was measured, with its unit at the end of the name.
        median: the median, or the figure itself where ``n`` things gave one figure.
        p99: the 99th percentile, None where it means nothing.
        n: how many measurements or things the figure rests on.
        medians: the median of each process, where several ran.
        p99s: the 99th percentile of each of them, as far as there is one.
    """

    system: str
    workload: str
    metric: str
    median: float
    p99: float | None
    n: int
    medians: tuple[float, ...] = ()
    p99s: tuple[float, ...] = ()

    @property
    def key(self) -> Key:
        """Return what the row is about."""
        return self.system, self.workload, self.metric

    @property
    def range(self) -> Interval | None:
        """Return the lowest and the highest median of a process; None where one process ran."""
        return _range(self.medians)


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """What one run of a suite found, in one process or in several.

    Args:
        suite: its name.
        rows: every figure.
        ratios: the figures that claims rest on; the suite's docstring defines them. Where one
            process ran, those that are an ``Estimate`` have an interval.
        emulated: whether an emulated accelerator took part.
        environment: where and when it ran; filled by the command that runs the suite.
        by_process: the value of each ratio in every process, where several ran.
        scripted: whether engines and models were sleeps of a scripted length; where that is so of a
            part only, which.
        sizes: how much was measured, as JSON values; see ``sizes_of``.
        wrong: answers that are not what they must be (``bench.answers``); such a result is never
            written.
    """

    suite: str
    rows: tuple[Row, ...]
    ratios: Mapping[str, float]
    emulated: bool = False
    environment: Mapping[str, Any] = field(default_factory=dict)
    by_process: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    scripted: bool | str = False
    sizes: Mapping[str, Any] = field(default_factory=dict)
    wrong: tuple[str, ...] = ()

    @property
    def num_processes(self) -> int:
        """Return how many processes ran the suite."""
        return int(self.environment.get("num_processes", 1))

    def range_of(self, ratio: str) -> Interval | None:
        """Return the lowest and the highest value of a ratio; None where one process ran."""
        return _range(self.by_process.get(ratio, ()))

    def interval_of(self, ratio: str) -> Interval | None:
        """Return the 95 % interval of a ratio within one process; None if it has none."""
        value = self.ratios[ratio]
        return value.interval if isinstance(value, Estimate) and not self.by_process else None


def _range(values: Sequence[float]) -> Interval | None:
    return Interval(min(values), max(values)) if values else None


def row_of(system: str, workload: str, metric: str, values: Sequence[float]) -> Row:
    """Summarise measurements as a row."""
    return replace(median_row(system, workload, metric, values), p99=percentile(values, 0.99))


def median_row(system: str, workload: str, metric: str, values: Sequence[float]) -> Row:
    """Summarise measurements whose 99th percentile would mean nothing, such as ratios."""
    return Row(system, workload, metric, median(values), None, len(values))


def sizes_of(sizes: Any) -> dict[str, Any]:
    """Return a suite's sizes, a dataclass, as the JSON values that a file would give back."""
    return json.loads(json.dumps(asdict(sizes)))


def over_processes(results: Sequence[SuiteResult]) -> SuiteResult:
    """Return what several processes found that ran the same suite, as one result.

    Each result is that of one process, or already of several. Rows that one of them lacks (the
    rates that a search for a limit tried) are left out.

    Raises:
        ConfigError: if they do not have the same ratios.
    """
    first = results[0]
    for number, one in enumerate(results):
        check_keys(one.ratios, first.ratios, f"{first.suite}: process {number}: ratios")
    values = {
        name: tuple(
            float(value)
            for one in results
            for value in one.by_process.get(name, (one.ratios[name],))
        )
        for name in first.ratios
    }
    by_key = [{row.key: row for row in one.rows} for one in results]
    rows = tuple(
        _merged([one[row.key] for one in by_key])
        for row in first.rows
        if all(row.key in one for one in by_key)
    )
    num_processes = sum(one.num_processes for one in results)
    return replace(
        first,
        rows=rows,
        # Of an odd number of estimates the median is one of them, whose interval is not of all.
        ratios={name: float(median(each)) for name, each in values.items()},
        by_process=values,
        environment={**first.environment, "num_processes": num_processes},
    )


def _merged(rows: Sequence[Row]) -> Row:
    medians = [value for row in rows for value in row.medians or (row.median,)]
    p99s = [value for row in rows for value in row.p99s or (() if row.p99 is None else (row.p99,))]
    return replace(
        rows[0],
        median=median(medians),
        p99=median(p99s) if p99s else None,
        n=sum(row.n for row in rows),
        medians=tuple(medians),
        p99s=tuple(p99s),
    )


def as_json(result: SuiteResult) -> dict[str, Any]:
    """Return the result as plain JSON values."""
    data = {
        "suite": result.suite,
        "environment": dict(result.environment),
        "emulated": result.emulated,
        "scripted": result.scripted,
        "sizes": dict(result.sizes),
        "rows": [_row_as_json(row) for row in result.rows],
        "ratios": {name: float(value) for name, value in result.ratios.items()},
    }
    intervals = ((name, result.interval_of(name)) for name in result.ratios)
    if found := {name: [one.low, one.high] for name, one in intervals if one}:
        data[_INTERVALS] = found
    if result.by_process:
        ranges = ((name, result.range_of(name)) for name in result.ratios)
        data[_RANGES] = {name: [found.low, found.high] for name, found in ranges if found}
        data[_BY_PROCESS] = {name: list(each) for name, each in result.by_process.items()}
    return data


def _row_as_json(row: Row) -> dict[str, Any]:
    data: dict[str, Any] = {name: getattr(row, name) for name in _ROW}
    if row.p99 is not None:
        data["p99"] = row.p99
    if found := row.range:
        data |= {"low": found.low, "high": found.high, "medians": list(row.medians)}
    if row.p99s:
        data["p99s"] = list(row.p99s)
    return data


def from_json(data: Any, where: str) -> SuiteResult:
    """Return the result that ``as_json`` wrote.

    Raises:
        ConfigError: if something is missing, unknown or of the wrong type.
    """
    check(data, dict, where)
    # One process alone leaves both out; the ranges follow from the values.
    data = {_BY_PROCESS: {}, **data}
    data.pop(_RANGES, None)
    intervals = data.pop(_INTERVALS, {})
    check_keys(data, {one.name for one in fields(SuiteResult)} - {_WRONG}, where)
    scripted = str if isinstance(data["scripted"], str) else bool
    for name, kind in (("suite", str), ("emulated", bool), ("scripted", scripted), ("rows", list)):
        check(data[name], kind, f"{where}: {name}")
    for name in ("environment", "sizes", "ratios", _BY_PROCESS):
        check(data[name], dict, f"{where}: {name}")
    check(data["environment"].get("num_processes", 1), int, f"{where}: num_processes")
    for name, value in data["ratios"].items():
        check(value, float, f"{where}: ratio {name}")
    if data[_BY_PROCESS]:
        check_keys(data[_BY_PROCESS], data["ratios"], f"{where}: {_BY_PROCESS}")
    values = {
        name: _numbers(each, f"{where}: {_BY_PROCESS}: ratio {name}")
        for name, each in data[_BY_PROCESS].items()
    }
    rows = tuple(_row(one, f"{where}: row {index}") for index, one in enumerate(data["rows"]))
    ratios = data["ratios"] | _estimates(data["ratios"], intervals, f"{where}: {_INTERVALS}")
    return SuiteResult(**{**data, "rows": rows, "ratios": ratios, _BY_PROCESS: values})


def _estimates(ratios: Mapping[str, float], intervals: Any, where: str) -> dict[str, float]:
    """Return the ratios that have an interval, with it."""
    check(intervals, dict, where)
    found = dict[str, float]()
    for name, ends in intervals.items():
        check_keys({name: ends}, {name} & ratios.keys(), where)
        here = f"{where}: {name}"
        each = _numbers(ends, here)
        if len(each) != 2 or each[0] > each[1]:
            raise ConfigError(
                "no interval", where=here, found=ends, valid="[low, high]", hint=RERUN
            )
        found[name] = Estimate(ratios[name], Interval(*each))
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
    texts = [_text(result) for result in results]
    text = texts[0] if len(texts) == 1 else _listed("[", texts, "]")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n", encoding="utf-8")


def _text(result: SuiteResult) -> str:
    """Return a result as JSON in which every row, ratio and setting stands on one line."""
    data = as_json(result)
    data["rows"] = [
        {name: _in_ten_digits(value) for name, value in row.items()} for row in data["rows"]
    ]
    return _listed("{", [f"{_dumps(name)}: {_spread(value)}" for name, value in data.items()], "}")


def _spread(value: Any) -> str:
    if isinstance(value, dict) and value:
        return _listed("{", [f" {_dumps(name)}: {_dumps(one)}" for name, one in value.items()], "}")
    if isinstance(value, list) and value:
        return _listed("[", [f" {_dumps(one)}" for one in value], "]")
    return _dumps(value)


def _listed(opening: str, lines: Sequence[str], closing: str) -> str:
    return "\n".join([opening, ",\n".join(lines), closing])


def _dumps(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def _in_ten_digits(value: Any) -> Any:
    if isinstance(value, list):
        return [_in_ten_digits(one) for one in value]
    if not isinstance(value, float):
        return value
    rounded = float(f"{value:.10g}")
    return int(rounded) if rounded.is_integer() else rounded


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
    # The range follows from the medians; what else is left out does not exist.
    data = {"p99": None, "medians": [], "p99s": [], **data}
    for name in _DERIVED:
        data.pop(name, None)
    check_keys(data, {one.name for one in fields(Row)}, where)
    for name in ("system", "workload", "metric"):
        check(data[name], str, f"{where}: {name}")
    check(data["median"], float, f"{where}: median")
    if data["p99"] is not None:
        check(data["p99"], float, f"{where}: p99")
    check(data["n"], int, f"{where}: n")
    each = {name: _numbers(data[name], f"{where}: {name}") for name in ("medians", "p99s")}
    return Row(**{**data, **each})


def _numbers(values: Any, where: str) -> tuple[float, ...]:
    check(values, list, where)
    for value in values:
        check(value, float, where)
    return tuple(values)
