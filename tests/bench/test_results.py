from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.measure import Interval
from bench.results import (
    Row,
    SuiteResult,
    as_json,
    from_json,
    load,
    load_folder,
    over_processes,
    row_of,
    save,
)
from rag_accel.errors import ConfigError


def test_the_json_has_exactly_the_agreed_fields(result: SuiteResult) -> None:
    data = as_json(result)
    assert list(data) == ["suite", "environment", "emulated", "rows", "ratios"]
    assert list(data["rows"][0]) == ["system", "workload", "metric", "median", "p99", "n"]
    assert data["ratios"] == {"sample_p99_64": 0.5, "sample_throughput_64": 2.0}


def test_a_result_survives_a_file(result: SuiteResult, tmp_path: Path) -> None:
    path = tmp_path / "new" / "sample.json"
    save(path, [result])
    assert isinstance(json.loads(path.read_text()), dict)
    assert load(path) == [result]


def test_several_results_survive_one_file(result: SuiteResult, tmp_path: Path) -> None:
    path = tmp_path / "all.json"
    save(path, [result, result])
    assert load(path) == [result, result]


def test_a_folder_is_read_in_the_order_of_its_file_names(
    result: SuiteResult, tmp_path: Path
) -> None:
    for name in ("b", "a"):
        save(tmp_path / f"{name}.json", [SuiteResult(name, result.rows, result.ratios)])
    (tmp_path / "notes.txt").write_text("no result")
    assert [one.suite for one in load_folder(tmp_path)] == ["a", "b"]


def test_a_row_summarises_its_values() -> None:
    values = [float(value) for value in range(1, 201)]
    row = row_of("plain", "1 user", "latency_ms", values)
    assert row == Row("plain", "1 user", "latency_ms", 100.5, 198.0, 200)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"suite": 3}, "suite"),
        ({"environment": []}, "environment"),
        ({"emulated": "no"}, "emulated"),
        ({"rows": {}}, "rows"),
        ({"ratios": {"speed": "2"}}, "ratio speed"),
        ({"ratios": {"speed": float("nan")}}, "ratio speed"),
        ({"ratios": {"speed": True}}, "ratio speed"),
        ({"rows": [{"system": "plain"}]}, "row 0"),
        ({"more": 1}, "here"),
    ],
)
def test_a_bad_result_is_refused_and_named(
    result: SuiteResult, change: dict[str, Any], where: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        from_json({**as_json(result), **change}, "here")
    assert where in str(caught.value.where)


@pytest.mark.parametrize(
    ("field", "value"),
    [("system", None), ("median", "1"), ("median", float("inf")), ("p99", "1"), ("n", 1.5)],
)
def test_a_bad_row_is_refused_and_named(result: SuiteResult, field: str, value: Any) -> None:
    data = as_json(result)
    data["rows"][2][field] = value
    with pytest.raises(ConfigError) as caught:
        from_json(data, "here")
    assert caught.value.where == f"here: row 2: {field}"


def test_a_missing_field_is_refused(result: SuiteResult) -> None:
    data = as_json(result)
    del data["emulated"]
    with pytest.raises(ConfigError, match="not the fields"):
        from_json(data, "here")


def test_figures_that_are_no_numbers_are_never_written(tmp_path: Path) -> None:
    broken = SuiteResult("sample", (), {"speed": float("nan")})
    with pytest.raises(ValueError, match="not JSON compliant"):
        save(tmp_path / "sample.json", [broken])


def test_the_ratios_of_several_processes_are_medians_with_a_range(of_three: SuiteResult) -> None:
    assert of_three.ratios == {"sample_p99_64": 0.5, "sample_throughput_64": 2.0}
    assert of_three.range_of("sample_throughput_64") == Interval(1.5, 4.0)
    assert of_three.range_of("sample_p99_64") == Interval(0.5, 0.5)


def test_one_process_has_no_range(result: SuiteResult) -> None:
    assert result.range_of("sample_p99_64") is None


def test_what_each_process_found_survives_a_file(of_three: SuiteResult, tmp_path: Path) -> None:
    save(tmp_path / "sample.json", [of_three])
    assert load(tmp_path / "sample.json") == [of_three]
    data = as_json(of_three)
    assert list(data) == ["suite", "environment", "emulated", "rows", "ratios", "processes"]
    assert [one["ratios"]["sample_throughput_64"] for one in data["processes"]] == [2.0, 1.5, 4.0]


def test_processes_with_different_ratios_are_refused(result: SuiteResult) -> None:
    with pytest.raises(ConfigError, match="not the fields"):
        over_processes([result, SuiteResult("sample", (), {"other": 1.0})])


@pytest.mark.parametrize(
    ("process", "where"),
    [
        (3, "process 1"),
        ({"ratios": {}}, "process 1: ratios"),
        ({"rows": {}}, "process 1: rows"),
        (
            {"ratios": {"sample_p99_64": 0.5, "sample_throughput_64": "2"}},
            "process 1: ratio sample",
        ),
    ],
)
def test_a_bad_process_is_refused_and_named(
    of_three: SuiteResult, process: Any, where: str
) -> None:
    data = as_json(of_three)
    whole = data["processes"][1]
    data["processes"][1] = {**whole, **process} if isinstance(process, dict) else process
    with pytest.raises(ConfigError) as caught:
        from_json(data, "here")
    assert where in str(caught.value.where)


@pytest.mark.parametrize("content", [None, "{", "3", "[1]"])
def test_a_file_that_holds_no_result_is_an_error(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "sample.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(path) in str(caught.value)
