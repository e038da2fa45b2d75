"""The suite on depth-aware order of LangGraph programs runs both arms and defines its ratios."""

from __future__ import annotations

import pytest

pytest.importorskip("langgraph")

from bench.results import as_json, from_json
from bench.suites import langgraph_depth, ratio_definitions

TINY = langgraph_depth.Sizes(pairs=2, wide=4, batch=2, answer_s=0.0)


def test_both_arms_are_measured_and_every_ratio_is_defined() -> None:
    found = langgraph_depth.run(True, TINY)
    assert from_json(as_json(found), found.suite) == found
    assert set(found.ratios) == set(ratio_definitions(found.suite))
    assert all(ratio > 0 for ratio in found.ratios.values())
    assert found.emulated, "engine and model are stand-ins"
    measured = {(row.system, row.workload) for row in found.rows}
    for system in ("skeleton off", "skeleton on", "on / off"):
        assert {(system, "1 user"), (system, "4 users")} <= measured
    assert {row.n for row in found.rows} == {TINY.pairs}
