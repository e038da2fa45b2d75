from __future__ import annotations

import json
from pathlib import Path

from bench.environment import installed_versions, read_environment, settings
from rag_accel.machine import cpu_model


def test_the_environment_says_all_that_is_needed_as_json() -> None:
    found = json.loads(json.dumps(read_environment(quick=True)))
    needed = {"python", "versions", "cpu", "cores", "load_average", "date", "variables", "quick"}
    assert needed <= set(found)
    assert found["cores"] >= 1
    assert len(found["load_average"]) == 3
    assert found["quick"] is True
    assert "numpy" in found["versions"]


def test_packages_that_are_not_installed_are_left_out() -> None:
    assert installed_versions(("no-such-package-here",)) == {}


def test_the_processor_is_the_first_one_named(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: Fast: one\n\nmodel name\t: Other\n")
    assert cpu_model(info) == "Fast: one"


def test_the_processor_has_some_name_where_the_system_does_not_tell(tmp_path: Path) -> None:
    assert cpu_model(tmp_path / "missing")


def test_only_variables_that_change_the_figures_are_recorded() -> None:
    environ = {
        **{"OMP_NUM_THREADS": "1", "RAG_ACCEL": "1", "RAG_ACCEL_MAX_BATCH": "8"},
        **{"HOME": "/home/me", "RAG_ACCELERATION": "x"},
    }
    assert settings(environ) == {
        "OMP_NUM_THREADS": "1",
        "RAG_ACCEL": "1",
        "RAG_ACCEL_MAX_BATCH": "8",
    }
