from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.processes import appendable, combined
from bench.results import SuiteResult, save
from rag_accel.errors import ConfigError

CODE = {"commit": "c0ffee", "is_dirty": False}


@pytest.fixture
def here(result: SuiteResult) -> dict[str, Any]:
    return {**result.environment, **CODE, "versions": {}, "variables": {}}


@pytest.fixture
def kept(result: SuiteResult, here: dict[str, Any], tmp_path: Path) -> Path:
    path = tmp_path / "sample.json"
    save(path, [replace(result, environment=here, sizes={"repeats": 3})])
    return path


def _at(result: SuiteResult, speed: float) -> SuiteResult:
    return replace(result, ratios={"speed": speed})


def test_processes_are_put_together_however_they_came(result: SuiteResult) -> None:
    first, second, third = (_at(result, speed) for speed in (1.0, 5.0, 2.0))
    found = combined([combined([first, second]), third])
    assert found.ratios == {"speed": 2.0}
    assert found.by_process == {"speed": (1.0, 5.0, 2.0)}
    assert found == combined([first, second, third])
    assert found.num_processes == found.environment["num_processes"] == 3


def test_a_process_is_added_to_a_file(
    result: SuiteResult, here: dict[str, Any], kept: Path
) -> None:
    later = {**here, "date": "2026-01-02T00:00:00+00:00", "load_average": [9.0, 9.0, 9.0]}
    old = appendable(kept, "sample", later)
    assert old is not None
    found = combined([old, replace(result, environment=later, sizes={"repeats": 3})])
    assert found.environment == {**here, "num_processes": 2}
    assert {row.key: row.n for row in found.rows} == {row.key: 2 * row.n for row in result.rows}
    save(kept, [found])
    again = appendable(kept, "sample", later)
    assert again == found


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"commit": "decade"}, "commit decade"),
        ({"cores": 64}, "cores 64"),
        ({"quick": False}, "quick False"),
        ({"versions": {"torch": "9"}}, "versions"),
        ({"variables": {"RAG_ACCEL_MAX_BATCH": "1"}}, "variables"),
    ],
)
def test_what_measured_something_else_is_refused_before_it_runs(
    here: dict[str, Any], kept: Path, change: dict[str, Any], found: str
) -> None:
    with pytest.raises(ConfigError, match="measured something else") as caught:
        appendable(kept, "sample", {**here, **change})
    assert found in str(caught.value.found)


@pytest.mark.parametrize("code", [{"is_dirty": True}, {"commit": None}, {"is_dirty": None}])
def test_code_that_no_commit_names_is_refused(
    result: SuiteResult, here: dict[str, Any], kept: Path, code: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match="no commit names") as caught:
        appendable(kept, "sample", {**here, **code})
    assert caught.value.where == "sample here"
    save(kept, [replace(result, environment={**here, **code})])
    with pytest.raises(ConfigError, match="no commit names") as caught:
        appendable(kept, "sample", here)
    assert caught.value.where == str(kept)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"sizes": {"repeats": 9}}, "sizes {'repeats': 9}"),
        ({"environment": {**CODE, "commit": "decade"}}, "commit decade"),
    ],
)
def test_a_process_that_measured_something_else_joins_no_others(
    result: SuiteResult, change: dict[str, Any], found: str
) -> None:
    first = replace(result, environment=CODE, sizes={"repeats": 3})
    other = replace(first, **change)
    with pytest.raises(ConfigError, match="measured something else") as caught:
        combined([first, first, other])
    assert caught.value.where == "sample: process 2"
    assert caught.value.found == found
