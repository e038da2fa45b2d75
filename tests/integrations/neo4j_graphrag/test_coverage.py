"""``coverage()`` of neo4j-graphrag, and options that no part of its objects reads."""

from __future__ import annotations

from typing import Any

from neo4j_graphrag_rag_accel import activate, coverage
from rag_accel import Accelerator


def test_a_local_one_is_scheduled(local_embedder: Any, accelerator: Accelerator) -> None:
    with activate(accelerator), coverage(local_embedder) as seen:
        local_embedder.embed_query("a question")
    assert (seen.scheduled, seen.borrowed, seen.passed_by) == (1, 0, 0)
    parts = {one.option: one.parts for one in seen.options}
    assert parts["embedding_runtime"] == ("program: SentenceTransformerEmbeddings",)
