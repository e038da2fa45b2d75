"""Engines on several nodes of a real Ray cluster, of which one is lost or has other versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worker_paths import worker_path

from rag_accel.engine_api import (
    EngineOutput,
    EngineRequest,
    PrimitiveKind,
    StepBudget,
    TextBatch,
    WorkId,
)
from rag_accel.engines.ray import RayEngine, RayOptions
from rag_accel.errors import ConfigError
from rag_accel.testing import FakeEngine

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

#: Pieces of work in flight when a node is lost, on two replicas.
HELD = 40


def embedding(number: int) -> EngineRequest:
    payload = TextBatch((f"text {number}",))
    return EngineRequest(WorkId(f"w{number}"), "r", PrimitiveKind.EMBEDDING, payload)


def until(
    engine: RayEngine, seen: list[EngineOutput], holds: Callable[[], object]
) -> list[EngineOutput]:
    """Step until something holds; outputs are added to those seen."""
    while not holds():
        seen += engine.step(StepBudget(0.05))
    return seen


def states(engine: RayEngine) -> list[str]:
    return sorted(part.state for part in engine.health().parts)


@pytest.fixture
def second(cluster: Any, nodes: Any) -> Iterator[Any]:
    """Add a node with room for one replica, as the first has."""
    node = nodes.add_node(num_cpus=2, resources={"seat": 1}, object_store_memory=100 * 2**20)
    yield node
    if node in nodes.worker_nodes:
        nodes.remove_node(node)


def test_a_lost_node_loses_no_work_and_answers_none_twice(
    second: Any, nodes: Any, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    options = RayOptions(num_cpus=0.5, resources={"seat": 1}, replicas=2)
    engine = RayEngine("hosted_engines:FileGatedEngine", {"gate": str(gate)}, options)
    here = FakeEngine()
    try:
        work = [embedding(number) for number in range(HELD)]
        here.submit(work)
        expected = {output.id: output.value for output in here.step(StepBudget())}
        engine.submit(work)
        assert [replica.items for replica in engine._replicas] == [HELD // 2, HELD // 2]
        nodes.remove_node(second, allow_graceful=False)
        seen = until(engine, [], lambda: states(engine) == ["paused", "ready"])
        gate.touch()
        more = [embedding(number) for number in range(HELD, 2 * HELD)]
        here.submit(more)
        expected |= {output.id: output.value for output in here.step(StepBudget())}
        engine.submit(more)
        until(engine, seen, lambda: len(seen) >= 2 * HELD)
        seen += engine.step(StepBudget(1.0))
        assert Counter(output.id for output in seen) == Counter(list(expected))
        assert {output.kind for output in seen} == {"final"}
        for output in seen:
            np.testing.assert_array_equal(output.value, expected[output.id])
        third = nodes.add_node(num_cpus=2, resources={"seat": 1}, object_store_memory=100 * 2**20)
        until(engine, [], lambda: states(engine) == ["ready", "ready"])
        engine.close()
        nodes.remove_node(third)
    finally:
        engine.close()


def test_a_worker_of_another_version_is_named_with_its_node(cluster: Any, tmp_path: Path) -> None:
    other = tmp_path / "rag_accel-9.9.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: rag-accel\nVersion: 9.9\n")
    variables = {"env_vars": {"PYTHONPATH": worker_path(str(tmp_path))}}
    with pytest.raises(ConfigError, match="another version") as raised:
        RayEngine("hosted_engines:fake", options=RayOptions(runtime_env=variables))
    assert "rag-accel 9.9" in str(raised.value)
