"""Device groups of real models: vectors of any placement are those of one device."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from rag_accel.engine_api import EngineRequest, PrimitiveKind, StepBudget, TextBatch, WorkId
from rag_accel.engines.devices.group import DeviceGroup
from rag_accel.engines.devices.members import EngineMember
from rag_accel.engines.embedding.engine import SentenceTransformerEngine

TEXTS = tuple(f"{number} " + "retrieval of vectors " * (number % 20) for number in range(200))


def group(*models: Any, **more: Any) -> DeviceGroup:
    members = [
        EngineMember(SentenceTransformerEngine(model, runtime="torch"), f"cpu-{number}")
        for number, model in enumerate(models)
    ]
    return DeviceGroup(members, threads=2, **more)


def vectors(engine: DeviceGroup, texts: tuple[str, ...]) -> Any:
    work = EngineRequest(WorkId("w"), "r", PrimitiveKind.EMBEDDING, TextBatch(texts))
    engine.submit([work])
    outputs: list[Any] = []
    while not outputs:
        outputs += engine.step(StepBudget(10.0, threads=2))
    assert outputs[0].error is None
    return outputs[0].value


def test_two_members_give_the_vectors_of_one_device(small_model: Any) -> None:
    engine = group(copy.deepcopy(small_model), copy.deepcopy(small_model))
    try:
        found = vectors(engine, TEXTS)
        counts = engine.counts
    finally:
        engine.close()
    expected = small_model.encode(list(TEXTS))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert min(counts["cpu_0_texts"], counts["cpu_1_texts"]) > 0


def test_a_model_in_half_precision_stays_out_until_it_is_allowed(minilm: Any) -> None:
    half = copy.deepcopy(minilm).bfloat16()
    for tolerance, said in ((None, "stays out: other vectors"), (0.1, "near vectors")):
        engine = group(minilm, half, tolerance=tolerance)
        try:
            assert said in engine.describe_parts()[1]
        finally:
            engine.close()
