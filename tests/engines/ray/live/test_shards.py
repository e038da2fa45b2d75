"""An index whose shards lie in actors of a real Ray cluster."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rag_accel.engine_api import (
    Document,
    EngineOutput,
    EngineRequest,
    IngestBatch,
    PrimitiveKind,
    SearchQuery,
    StepBudget,
    WorkId,
)
from rag_accel.engines.ray import RayOptions, RayShards, split_index, write_shards
from rag_accel.engines.retrieval import DocumentIndex, IndexSpec

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

DIMENSION = 32


def finish(engine: RayShards, work: list[EngineRequest]) -> dict[str, EngineOutput]:
    engine.submit(work)
    ends: dict[str, EngineOutput] = {}
    while len(ends) < len(work):
        ends.update({output.id: output for output in engine.step(StepBudget(0.1))})
    return ends


def assert_equal_to_one(engine: RayShards, index: DocumentIndex, number: int) -> None:
    queries = np.random.default_rng(7).standard_normal((number, DIMENSION), dtype=np.float32)
    kind = PrimitiveKind.SEARCHING
    work = [
        EngineRequest(WorkId(f"s{n}"), "r", kind, SearchQuery(query, 10))
        for n, query in enumerate(queries)
    ]
    ends = finish(engine, work)
    for n, expected in enumerate(index.search(queries, 10)):
        found = [(hit.document, hit.score) for hit in ends[f"s{n}"].value]
        assert found == [(hit.document, hit.score) for hit in expected]


def test_a_thousand_searches_equal_one_index_also_after_a_death(
    cluster: Any, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    index = DocumentIndex(IndexSpec(DIMENSION))
    documents = [Document(f"d{n}", f"text {n}") for n in range(2000)]
    index.add(documents, rng.standard_normal((2000, DIMENSION), dtype=np.float32))
    write_shards(tmp_path / "shards", split_index(index, 3), "embedder")
    engine = RayShards(tmp_path / "shards", RayOptions(num_cpus=0.5))
    try:
        assert_equal_to_one(engine, index, 1000)
        batch = [Document(f"d{n}", f"new {n}") for n in range(1990, 2030)]
        vectors = rng.standard_normal((40, DIMENSION), dtype=np.float32)
        payload = IngestBatch(tuple(batch), vectors)
        work = [EngineRequest(WorkId("i"), "r", PrimitiveKind.INGESTION, payload)]
        assert finish(engine, work)["i"].error is None
        index.add(batch, vectors)
        info = engine._replicas[1].info
        assert info is not None
        os.kill(info.pid, signal.SIGKILL)
        assert_equal_to_one(engine, index, 100)
    finally:
        engine.close()
