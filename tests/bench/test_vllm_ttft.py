"""The suite of vLLM's first token where vLLM is not installed, and its requests."""

from __future__ import annotations

from pathlib import Path

from bench.suites import ratio_definitions, vllm_ttft


def test_without_its_environment_there_is_one_row(tmp_path: Path) -> None:
    found = vllm_ttft.run(True, python=tmp_path / "python")
    (row,) = found.rows
    assert (row.system, row.metric) == ("vLLM", "missing")
    assert "make test-vllm" in row.workload
    assert found.ratios == {}


def test_each_ratio_is_defined() -> None:
    names = {"reuse_vs_full", "rows15_vs_full", "files_over_host", "one_user"}
    assert set(ratio_definitions("vllm_ttft")) == names
