"""Engines in actors of a real Ray cluster."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

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

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

FAKE = "hosted_engines:fake"


def embedding(number: int, *texts: str) -> EngineRequest:
    payload = TextBatch(texts or (f"text {number}",))
    return EngineRequest(
        WorkId(f"w{number}"), "r", PrimitiveKind.EMBEDDING, payload, size=len(payload.texts)
    )


def run(engine: RayEngine, work: list[EngineRequest]) -> dict[str, EngineOutput]:
    """Return the ends of work by its ids."""
    engine.submit(work)
    return finish(engine, len(work))


def finish(engine: RayEngine, number: int) -> dict[str, EngineOutput]:
    """Step until so many pieces of work have ended."""
    ends: dict[str, EngineOutput] = {}
    while len(ends) < number:
        for output in engine.step(StepBudget(0.1)):
            if output.kind in ("final", "error"):
                ends[output.id] = output
    return ends


def wait_until(engine: RayEngine, holds: Callable[[], bool]) -> None:
    while not holds():
        engine.step(StepBudget(0.05))


def pids(engine: RayEngine) -> list[int]:
    return [replica.info.pid for replica in engine._replicas if replica.info is not None]


def test_hosted_vectors_equal_those_of_the_engine_here(cluster: Any) -> None:
    from rag_accel.engines import SentenceTransformerEngine

    texts = [("a short text",), ("another", "of two texts"), ("the river bank",)]
    work = [embedding(number, *batch) for number, batch in enumerate(texts)]
    local = SentenceTransformerEngine(runtime="torch")
    local.submit(work)
    here = {output.id: output.value for output in local.step(StepBudget())}
    engine = RayEngine("embedding", {"runtime": "torch"}, RayOptions(num_cpus=1))
    try:
        hosted = run(engine, work)
    finally:
        engine.close()
        local.close()
    for id, vectors in here.items():
        np.testing.assert_allclose(hosted[id].value, vectors, atol=1e-6)


def test_a_killed_actor_serves_again_with_equal_results(cluster: Any) -> None:
    engine = RayEngine(FAKE, options=RayOptions(replicas=2))
    try:
        before = run(engine, [embedding(number) for number in range(8)])
        assert all(end.kind == "final" for end in before.values())
        victim = pids(engine)[0]
        engine.submit([embedding(number) for number in range(8)])
        os.kill(victim, signal.SIGKILL)
        after = finish(engine, 8)
        wait_until(engine, lambda: len(pids(engine)) == 2 and victim not in pids(engine))
        assert all(part.is_ready for part in engine.health().parts)
        again = run(engine, [embedding(number) for number in range(8)])
        for id, end in before.items():
            np.testing.assert_array_equal(after[id].value, end.value)
            np.testing.assert_array_equal(again[id].value, end.value)
    finally:
        engine.close()


def test_an_actor_that_never_fits_is_named_before_it_waits(cluster: Any) -> None:
    with pytest.raises(ConfigError, match="no room"):
        RayEngine(FAKE, options=RayOptions(num_gpus=1))


def test_an_error_of_the_factory_is_its_own(cluster: Any) -> None:
    with pytest.raises(ConfigError, match="bad number of steps"):
        RayEngine(FAKE, {"steps": 0})
