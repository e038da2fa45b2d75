from __future__ import annotations

from pathlib import Path

from bench.plots import draw
from bench.results import SuiteResult

_PNG = b"\x89PNG"


def test_each_metric_is_drawn_into_a_file_of_its_own(result: SuiteResult, tmp_path: Path) -> None:
    files = draw(result, tmp_path / "plots")
    assert [file.name for file in files] == ["sample_latency_ms.png", "sample_answers_per_s.png"]
    assert all(file.read_bytes().startswith(_PNG) for file in files)
