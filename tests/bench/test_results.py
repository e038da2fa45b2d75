from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.measure import Interval
from bench.results import (
    MAX_SAMPLES,
    Row,
    SuiteResult,
    as_json,
    from_json,
    load,
    load_folder,
    over_processes,
    row_of,
    sampled,
    save,
)
from rag_accel.errors import ConfigError


def test_the_json_has_exactly_the_agreed_fields(result: SuiteResult) -> None:
    data = as_json(result)
    assert list(data) == [
        *("suite", "environment", "emulated", "scripted", "sizes", "rows", "ratios")
    ]
    assert list(data["rows"][0]) == [
        *("system", "workload", "metric", "median", "p99", "n", "low", "high", "samples")
    ]
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
    assert row == Row(
        *("plain", "1 user", "latency_ms", 100.5, 198.0, 200), samples=tuple(values[::2])
    )


def test_samples_are_few_in_six_digits_and_in_order() -> None:
    values = [2.123456789, 1.0, 3.0]
    assert sampled(values) == (2.12346, 1.0, 3.0)
    for count in (99, 100, 101, 1234):
        kept = sampled([float(value) for value in range(count)])
        assert MAX_SAMPLES / 2 < len(kept) <= MAX_SAMPLES
        assert list(kept) == sorted(kept)


def test_samples_survive_a_file_and_stand_on_one_line(tmp_path: Path) -> None:
    rows = (row_of("plain", "[\n 1, 2\n]", "latency_ms", [3.0, 1.5]),)
    save(tmp_path / "sample.json", [SuiteResult("sample", rows, {})])
    assert load(tmp_path / "sample.json")[0].rows == rows
    assert '"samples": [3.0, 1.5]' in (tmp_path / "sample.json").read_text()


def test_a_file_from_before_samples_and_ranges_can_be_read(of_three: SuiteResult) -> None:
    data = as_json(of_three)
    for one in (data, *data["processes"]):
        del one["scripted"], one["sizes"]
        for row in one["rows"]:
            del row["low"], row["high"], row["samples"]
    del data["ranges"]
    assert from_json(data, "here") == of_three


def test_two_rows_about_the_same_are_refused(result: SuiteResult, tmp_path: Path) -> None:
    twice = replace(result, rows=(*result.rows, replace(result.rows[0], median=1.0)))
    with pytest.raises(ConfigError, match="two rows") as caught:
        save(tmp_path / "sample.json", [result, twice])
    assert caught.value.found == "plain, 64 users, latency_ms"
    assert not (tmp_path / "sample.json").exists()


def test_a_result_with_a_wrong_answer_is_never_written(result: SuiteResult, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="wrong answers") as caught:
        save(tmp_path / "sample.json", [replace(result, wrong=("ours said no",))])
    assert "ours said no" in str(caught.value)
    assert not (tmp_path / "sample.json").exists()


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"suite": 3}, "suite"),
        ({"environment": []}, "environment"),
        ({"emulated": "no"}, "emulated"),
        ({"scripted": 1}, "scripted"),
        ({"sizes": []}, "sizes"),
        ({"rows": [3]}, "row 0"),
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
    [
        *(("system", None), ("median", "1"), ("median", float("inf")), ("p99", "1"), ("n", 1.5)),
        *(("low", "1"), ("high", True), ("samples", None), ("samples", [1.0, "2"])),
    ],
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


def test_the_rows_of_several_processes_are_medians_with_a_range() -> None:
    processes = [
        SuiteResult(
            "sample", (Row("plain", "1 user", "latency_ms", low, p99, 10, None, None, (low,)),), {}
        )
        for low, p99 in ((3.0, 9.0), (1.0, 7.0), (2.0, 30.0))
    ]
    (row,) = over_processes(processes).rows
    assert row == Row("plain", "1 user", "latency_ms", 2.0, 9.0, 30, low=1.0, high=3.0)


def test_a_row_that_one_process_lacks_stays_with_the_others() -> None:
    shared = Row("ours", "sweep", "limit_rps", 5.0, None, 1)
    tried = Row("ours", "sweep, 5/s", "latency_s", 1.0, 2.0, 9)
    found = over_processes(
        [SuiteResult("sample", (shared, tried), {}), SuiteResult("sample", (shared,), {})]
    )
    assert [row.key for row in found.rows] == [shared.key]
    assert found.processes[0].rows == (shared, tried)


def test_one_process_has_no_range(result: SuiteResult) -> None:
    assert result.range_of("sample_p99_64") is None


def test_what_each_process_found_survives_a_file(of_three: SuiteResult, tmp_path: Path) -> None:
    save(tmp_path / "sample.json", [of_three])
    assert load(tmp_path / "sample.json") == [of_three]
    data = as_json(of_three)
    assert list(data)[-2:] == ["ranges", "processes"]
    assert data["ranges"] == {"sample_p99_64": [0.5, 0.5], "sample_throughput_64": [1.5, 4.0]}
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


def test_the_published_results_can_be_read() -> None:
    folder = Path(__file__).resolve().parents[2] / "bench" / "results"
    assert len(load_folder(folder)) >= len([*folder.glob("*.json")]) > 0
