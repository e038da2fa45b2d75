"""``coverage()`` of neo4j-graphrag, and options that no part of its objects reads."""

from __future__ import annotations

from typing import Any

import pytest
from ng_kit import HashEmbedder

from neo4j_graphrag_rag_accel import accelerate, activate, coverage, explain
from rag_accel import Accelerator, UnreadOptionWarning


def test_an_accelerated_embedder_is_borrowed(accelerator: Accelerator) -> None:
    embedder: Any = accelerate(HashEmbedder(), accelerator=accelerator)
    with coverage(embedder) as seen:
        embedder.embed_query("a question")
    assert [str(one) for one in seen.calls] == [
        "HashEmbedder.embed_query: 1 borrowed: no engine of this library computes what this class"
        " does"
    ]
    assert [(row.kind, row.passed_by) for row in seen.rows()] == [("embedder", 0)]


def test_a_plain_one_passes_by() -> None:
    embedder = HashEmbedder()
    with coverage(embedder) as seen:
        embedder.embed_query("a question")
    assert (seen.scheduled, seen.borrowed, seen.passed_by) == (0, 0, 1)


def test_a_local_one_is_scheduled(local_embedder: Any, accelerator: Accelerator) -> None:
    with activate(accelerator), coverage(local_embedder) as seen:
        local_embedder.embed_query("a question")
    assert (seen.scheduled, seen.borrowed, seen.passed_by) == (1, 0, 0)
    parts = {one.option: one.parts for one in seen.options}
    assert parts["embedding_runtime"] == ("program: SentenceTransformerEmbeddings",)


def test_an_unread_option_warns() -> None:
    with Accelerator(kv_reuse="full") as accelerator:
        with pytest.warns(UnreadOptionWarning, match="kv_reuse='full'"):
            fast = accelerate(HashEmbedder(), accelerator=accelerator)
        assert "option kv_reuse='full'" in explain(fast)
