from __future__ import annotations

from pathlib import Path

from bench.plots import draw
from bench.results import Row, SuiteResult

_PNG = b"\x89PNG"


def test_each_metric_is_drawn_into_a_file_of_its_own(result: SuiteResult, tmp_path: Path) -> None:
    files = draw(result, tmp_path / "plots")
    assert [file.name for file in files] == ["sample_latency_ms.png", "sample_answers_per_s.png"]
    assert all(file.read_bytes().startswith(_PNG) for file in files)


def test_a_metric_of_one_system_and_an_odd_name_is_drawn(tmp_path: Path) -> None:
    result = SuiteResult("a/b", (Row("plain", "1 user", "m / s", 1.0, None, 1),), {})
    assert [file.name for file in draw(result, tmp_path)] == ["a_b_m_s.png"]


def test_a_result_without_rows_draws_nothing(tmp_path: Path) -> None:
    assert draw(SuiteResult("sample", (), {}), tmp_path) == []
