"""A meter of another framework is open while a program of neo4j-graphrag runs."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from ng_kit import HashEmbedder

from neo4j_graphrag_rag_accel import accelerate
from rag_accel import Accelerator


@pytest.mark.parametrize("other", ["langchain_rag_accel", "llama_index_rag_accel"])
def test_it_counts_calls_of_other_frameworks_apart(other: str, accelerator: Accelerator) -> None:
    meters: Any = importlib.import_module(f"{other}.coverage")
    embedder: Any = accelerate(HashEmbedder(), accelerator=accelerator)
    with meters.coverage() as meter:
        found = embedder.embed_query("a question")
    assert found == HashEmbedder().embed_query("a question")
    assert [row.kind for row in meter.rows()] == ["other"]
