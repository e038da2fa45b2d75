"""One request to embed texts, stepped to its end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rag_accel.engine_api import Engine, EngineRequest, PrimitiveKind, StepBudget, TextBatch, WorkId


def embedded(engine: Engine, texts: Sequence[str], threads: int = 2) -> np.ndarray:
    """Return the vectors ``[len(texts), dimension]`` of texts as queries."""
    batch = TextBatch(tuple(texts), "query")
    engine.submit([EngineRequest(WorkId("w"), "1", PrimitiveKind.EMBEDDING, batch)])
    while True:
        for output in engine.step(StepBudget(None, threads)):
            assert output.kind == "final", output.value
            return np.asarray(output.value)
