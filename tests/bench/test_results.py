from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.measure import Estimate, Interval
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


def test_a_result_survives_a_file(result: SuiteResult, tmp_path: Path) -> None:
    path = tmp_path / "new" / "sample.json"
    save(path, [result])
    assert isinstance(json.loads(path.read_text()), dict)
    assert load(path) == [result]


def test_a_row_summarises_its_values() -> None:
    values = [float(value) for value in range(1, 201)]
    row = row_of("plain", "1 user", "latency_ms", values)
    assert row == Row("plain", "1 user", "latency_ms", 100.5, 198.0, 200)
    assert row.range is None


def test_an_interval_within_a_process_survives_a_file(result: SuiteResult, tmp_path: Path) -> None:
    gains = {"sample_p99_64": 0.5, "sample_throughput_64": Estimate(2.0, Interval(1.5, 2.5))}
    save(tmp_path / "sample.json", [replace(result, ratios=gains)])
    (found,) = load(tmp_path / "sample.json")
    assert found.interval_of("sample_throughput_64") == Interval(1.5, 2.5)
    assert found.interval_of("sample_p99_64") is None
    assert as_json(found)["intervals"] == {"sample_throughput_64": [1.5, 2.5]}


def test_the_range_of_processes_replaces_their_intervals(result: SuiteResult) -> None:
    gains = [Estimate(value, Interval(value - 1, value + 1)) for value in (3.0, 2.0, 4.0)]
    found = over_processes([replace(result, ratios={"gain": gain}) for gain in gains])
    assert found.range_of("gain") == Interval(2.0, 4.0)
    assert found.interval_of("gain") is None
    assert "intervals" not in as_json(found)


def test_the_part_that_is_scripted_survives_a_file(result: SuiteResult, tmp_path: Path) -> None:
    save(tmp_path / "sample.json", [replace(result, scripted="the search sleeps")])
    assert load(tmp_path / "sample.json")[0].scripted == "the search sleeps"


def test_a_row_stands_on_one_line_in_ten_digits_and_a_ratio_is_whole(tmp_path: Path) -> None:
    row = Row("plain", "1 user", "latency_ms", 2.1234567894, 12345678901.0, 3)
    save(tmp_path / "sample.json", [SuiteResult("sample", (row,), {"speed": 1.123456789})])
    (line,) = [
        line for line in (tmp_path / "sample.json").read_text().splitlines() if "plain" in line
    ]
    assert json.loads(line) == {
        **{"system": "plain", "workload": "1 user", "metric": "latency_ms"},
        **{"median": 2.123456789, "n": 3, "p99": 12345678900},
    }
    assert load(tmp_path / "sample.json")[0].ratios == {"speed": 1.123456789}


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
        ({"environment": {"num_processes": "5"}}, "num_processes"),
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
        ({"intervals": [1, 2]}, "intervals"),
        ({"intervals": {"none": [1, 2]}}, "intervals"),
        ({"intervals": {"sample_p99_64": [2, 1]}}, "intervals: sample_p99_64"),
        ({"intervals": {"sample_p99_64": [1]}}, "intervals: sample_p99_64"),
        ({"intervals": {"sample_p99_64": [1, "2"]}}, "intervals: sample_p99_64"),
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
        *(("medians", None), ("medians", [1.0, "2"]), ("p99s", 3), ("p99s", [True])),
    ],
)
def test_a_bad_row_is_refused_and_named(result: SuiteResult, field: str, value: Any) -> None:
    data = as_json(result)
    data["rows"][2][field] = value
    with pytest.raises(ConfigError) as caught:
        from_json(data, "here")
    assert caught.value.where == f"here: row 2: {field}"


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
        SuiteResult("sample", (Row("plain", "1 user", "latency_ms", median, p99, 10),), {})
        for median, p99 in ((3.0, 9.0), (1.0, None), (2.0, 30.0))
    ]
    (row,) = over_processes(processes).rows
    assert row == Row(
        *("plain", "1 user", "latency_ms", 2.0, 19.5, 30),
        medians=(3.0, 1.0, 2.0),
        p99s=(9.0, 30.0),
    )
    assert row.range == Interval(1.0, 3.0)


def test_a_row_that_one_process_lacks_is_left_out() -> None:
    shared = Row("ours", "sweep", "limit_rps", 5.0, None, 1)
    tried = Row("ours", "sweep, 5/s", "latency_s", 1.0, 2.0, 9)
    found = over_processes(
        [SuiteResult("sample", (shared, tried), {}), SuiteResult("sample", (shared,), {})]
    )
    assert [row.key for row in found.rows] == [shared.key]


def test_what_several_processes_found_survives_a_file(
    of_three: SuiteResult, tmp_path: Path
) -> None:
    save(tmp_path / "sample.json", [of_three])
    assert load(tmp_path / "sample.json") == [of_three]
    data = as_json(of_three)
    assert list(data)[-2:] == ["ranges", "by_process"]
    assert data["ranges"] == {"sample_p99_64": [0.5, 0.5], "sample_throughput_64": [1.5, 4.0]}
    assert data["by_process"]["sample_throughput_64"] == [2.0, 1.5, 4.0]
    assert data["rows"][0] == {
        **{"system": "plain", "workload": "64 users", "metric": "latency_ms"},
        **{"median": 12.5, "n": 768, "p99": 40.0, "low": 12.5, "high": 12.5},
        **{"medians": [12.5, 12.5, 12.5], "p99s": [40.0, 40.0, 40.0]},
    }


def test_processes_with_different_ratios_are_refused(result: SuiteResult) -> None:
    with pytest.raises(ConfigError, match="not the fields"):
        over_processes([result, SuiteResult("sample", (), {"other": 1.0})])


@pytest.mark.parametrize("content", [None, "{", "3", "[1]"])
def test_a_file_that_holds_no_result_is_an_error(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "sample.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(path) in str(caught.value)


PUBLISHED = Path(__file__).resolve().parents[2] / "bench" / "results"


def test_the_published_results_can_be_read() -> None:
    assert len(load_folder(PUBLISHED)) >= len([*PUBLISHED.glob("*.json")]) > 0


@pytest.mark.parametrize("result", load_folder(PUBLISHED), ids=lambda result: result.suite)
def test_a_published_result_is_a_summary_of_one_commit(result: SuiteResult) -> None:
    assert result.environment["commit"]
    assert result.environment["is_dirty"] is False
    # One process alone has no figures of each process.
    each = {result.num_processes} - {1}
    assert {len(values) for values in result.by_process.values()} == each
    assert {len(row.medians) for row in result.rows} == (each or {0})


def test_the_published_results_are_small() -> None:
    assert sum(path.stat().st_size for path in PUBLISHED.glob("*.json")) < 400 * 1024
