"""Engines in actors as stages of a graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.engine_api import Document
from rag_accel.engines import DocumentIndex, IndexSpec, SentenceTransformerEngine
from rag_accel.engines.ray import RayEngine, RayOptions, RayShards, split_index, write_shards

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

TEXTS = [
    "The bridge opened in 1932.",
    "The ferry takes nine minutes.",
    "A ticket costs four euros.",
]
QUESTION = "When was the bridge opened?"


def graphs() -> tuple[RAGraph, RAGraph]:
    """Return a graph that adds documents, and one that searches."""
    adding = RAGraph("documents").add_ingestion("add", documents="documents")
    adding.add_edge(START, "add").add_edge("add", END)
    asking = RAGraph().add_retrieval("search", top_k=2)
    asking.add_edge(START, "search").add_edge("search", END)
    return adding, asking


def test_stages_of_a_graph_run_in_actors(cluster: Any, tmp_path: Path) -> None:
    adding, asking = graphs()
    documents = [Document(text, text) for text in TEXTS]
    with Accelerator(
        embedder=SentenceTransformerEngine(runtime="torch"),
        index=DocumentIndex(IndexSpec(dimension=384)),
    ) as local:
        local.run(adding, documents=documents)
        expected = local.run(asking, input=QUESTION)
    write_shards(
        tmp_path / "shards", split_index(DocumentIndex(IndexSpec(dimension=384)), 2), "minilm"
    )
    half = RayOptions(num_cpus=0.5)
    with Accelerator(
        embedder=RayEngine("embedding", {"runtime": "torch"}, half),
        index=RayShards(tmp_path / "shards", half),
    ) as hosted:
        hosted.run(adding, documents=documents)
        found = [hosted.submit(asking, input=QUESTION) for _ in range(8)]
        for handle in found:
            hits = handle.result()
            assert [hit.document for hit in hits] == [hit.document for hit in expected]
            np.testing.assert_allclose(
                [hit.score for hit in hits], [hit.score for hit in expected], atol=1e-5
            )
        assert hosted.health().is_ready
