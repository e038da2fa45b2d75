"""Make work for hybrid engines, and read what their steps give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rag_accel.engine_api import (
    Document,
    EngineOutput,
    EngineRequest,
    HybridQuery,
    IngestBatch,
    PrimitiveKind,
    StepBudget,
    WorkId,
)
from rag_accel.engines.retrieval import DocumentIndex, IndexSpec
from rag_accel.engines.retrieval.hybrid.engine import HybridEngine

WORDS = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen")


def work(id: str, payload: object, kind: PrimitiveKind = PrimitiveKind.SEARCHING) -> EngineRequest:
    return EngineRequest(WorkId(id), "r", kind, payload)


def search(id: str, text: Any, vector: Any, k: Any = 3, **rest: Any) -> EngineRequest:
    return work(id, HybridQuery(vector, k, text=text, **rest))


def ingest(id: str, document: Document, vector: Any) -> EngineRequest:
    return work(id, IngestBatch((document,), [vector]), PrimitiveKind.INGESTION)


def step(engine: HybridEngine, *work: EngineRequest) -> dict[str, EngineOutput]:
    engine.submit(work)
    outputs = engine.step(StepBudget())
    assert len({output.id for output in outputs}) == len(outputs) == len(work)
    return {output.id: output for output in outputs}


def ids(output: EngineOutput) -> list[str]:
    assert output.error is None, output.error
    return [hit.document.id for hit in output.value]


def wordy_index(make_vectors: Callable[..., Any]) -> DocumentIndex:
    """Return 60 documents of a few words each; their vectors know nothing of the words."""
    random = np.random.default_rng(5)
    index = DocumentIndex(IndexSpec(6))
    texts = [" ".join(random.choice(WORDS, random.integers(1, 6))) for _ in range(60)]
    index.add([Document(f"d{i}", t, {"m": i % 3}) for i, t in enumerate(texts)], make_vectors(60))
    return index
