"""Hold the result of a suite, and read and write it as JSON.

A file holds one result or a list of them. One result is
``{"suite", "environment", "emulated", "rows", "ratios"}``, a row is
``{"system", "workload", "metric", "median", "p99", "n"}``; ``p99`` is null where it means nothing.
Where several processes ran the suite, ``"processes"`` lists what each of them found, whole;
``"ratios"`` holds the medians of theirs, and rows and environment are those of the first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from bench.measure import Interval, median, percentile
from rag_accel.errors import ConfigError

_RERUN = "run the suite again"
_PROCESSES = "processes"


@dataclass(frozen=True, slots=True)
class Row:
    """Hold one figure of one system.

    Args:
        system: who was measured, such as ``plain`` or ``accelerated``.
        workload: what it did.
        metric: what was measured, with its unit at the end of the name.
        median: the median, or the figure itself where ``n`` things gave one figure.
        p99: the 99th percentile, None where it means nothing.
        n: how many measurements or things the figure rests on.
    """

    system: str
    workload: str
    metric: str
    median: float
    p99: float | None
    n: int


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """Hold what one run of a suite found.

    Args:
        suite: its name.
        rows: every figure.
        ratios: the figures that claims rest on; the suite's docstring defines them.
        emulated: whether an emulated accelerator took part.
        environment: where and when it ran; filled by whoever runs the suite.
        processes: what each process found, where several ran the suite; ``ratios`` are medians.
    """

    suite: str
    rows: tuple[Row, ...]
    ratios: Mapping[str, float]
    emulated: bool = False
    environment: Mapping[str, Any] = field(default_factory=dict)
    processes: tuple[SuiteResult, ...] = ()

    def range_of(self, ratio: str) -> Interval | None:
        """Return the lowest and the highest value of a ratio; None where one process ran."""
        found = [one.ratios[ratio] for one in self.processes]
        return Interval(min(found), max(found)) if found else None


def row_of(system: str, workload: str, metric: str, values: Sequence[float]) -> Row:
    """Summarise measurements as a row."""
    return Row(system, workload, metric, median(values), percentile(values, 0.99), len(values))


def over_processes(results: Sequence[SuiteResult]) -> SuiteResult:
    """Return what several processes found that ran the same suite, as one result.

    Raises:
        ConfigError: if they do not have the same ratios.
    """
    first = results[0]
    _check_same_ratios(results, first.ratios, f"{first.suite} in several processes")
    medians = {name: median([one.ratios[name] for one in results]) for name in first.ratios}
    return replace(first, ratios=medians, processes=tuple(results))


def as_json(result: SuiteResult) -> dict[str, Any]:
    """Return the result as plain JSON values."""
    data = {
        "suite": result.suite,
        "environment": dict(result.environment),
        "emulated": result.emulated,
        "rows": [asdict(row) for row in result.rows],
        "ratios": dict(result.ratios),
    }
    if result.processes:
        data[_PROCESSES] = [as_json(one) for one in result.processes]
    return data


def from_json(data: Any, where: str) -> SuiteResult:
    """Return the result that ``as_json`` wrote.

    Raises:
        ConfigError: if something is missing, unknown or of the wrong type.
    """
    _check(data, dict, where)
    # One process alone leaves the list out.
    data = {_PROCESSES: [], **data}
    _check_keys(data, {one.name for one in fields(SuiteResult)}, where)
    _check(data["suite"], str, f"{where}: suite")
    _check(data["environment"], dict, f"{where}: environment")
    _check(data["emulated"], bool, f"{where}: emulated")
    _check(data["rows"], list, f"{where}: rows")
    _check(data["ratios"], dict, f"{where}: ratios")
    for name, value in data["ratios"].items():
        _check(value, float, f"{where}: ratio {name}")
    _check(data[_PROCESSES], list, f"{where}: {_PROCESSES}")
    rows = [_row(one, f"{where}: row {index}") for index, one in enumerate(data["rows"])]
    processes = [
        from_json(one, f"{where}: process {index}") for index, one in enumerate(data[_PROCESSES])
    ]
    _check_same_ratios(processes, data["ratios"], where)
    return SuiteResult(**{**data, "rows": tuple(rows), _PROCESSES: tuple(processes)})


def save(path: Path, results: Sequence[SuiteResult]) -> None:
    """Write one result as an object, several as a list; parent folders are made."""
    data = [as_json(result) for result in results]
    text = json.dumps(data[0] if len(data) == 1 else data, indent=1, allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")


def load(path: Path) -> list[SuiteResult]:
    """Read a file of results.

    Raises:
        ConfigError: if it is no such file.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            "no result file", where=str(path), found=error, valid="JSON", hint=_RERUN
        ) from error
    return [from_json(one, str(path)) for one in (data if isinstance(data, list) else [data])]


def load_folder(folder: Path) -> list[SuiteResult]:
    """Read every ``.json`` file of a folder, by name.

    Raises:
        ConfigError: if one of them is no result file.
    """
    return [result for path in sorted(folder.glob("*.json")) for result in load(path)]


def _row(data: Any, where: str) -> Row:
    _check_keys(data, {one.name for one in fields(Row)}, where)
    for name in ("system", "workload", "metric"):
        _check(data[name], str, f"{where}: {name}")
    _check(data["median"], float, f"{where}: median")
    if data["p99"] is not None:
        _check(data["p99"], float, f"{where}: p99")
    _check(data["n"], int, f"{where}: n")
    return Row(**data)


def _check_same_ratios(processes: Iterable[SuiteResult], wanted: Iterable[str], where: str) -> None:
    for number, one in enumerate(processes):
        _check_keys(one.ratios, wanted, f"{where}: process {number}: ratios")


def _check_keys(data: Any, wanted: Iterable[str], where: str) -> None:
    _check(data, dict, where)
    if set(data) != set(wanted):
        raise ConfigError(
            "not the fields of a result",
            where=where,
            found=", ".join(sorted(data)),
            valid=", ".join(sorted(wanted)),
            hint=_RERUN,
        )


def _check(value: Any, kind: type, where: str) -> None:
    accepted = (int, float) if kind is float else kind
    wrong = not isinstance(value, accepted) or (kind is not bool and isinstance(value, bool))
    if wrong or (isinstance(value, float) and not math.isfinite(value)):
        raise ConfigError(
            "bad value in a result",
            where=where,
            found=repr(value),
            valid="a finite number" if kind is float else kind.__name__,
            hint=_RERUN,
        )
