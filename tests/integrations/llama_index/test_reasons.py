"""Parts of LlamaIndex programs that no engine runs have the reason, in every report."""

from __future__ import annotations

import logging
from itertools import count
from typing import Any

import pytest
from li_programs import HashEmbedding
from llama_index.core.graph_stores import SimplePropertyGraphStore
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import VectorStoreQuery, VectorStoreQueryResult

from llama_index_rag_accel import accelerate, coverage, explain
from rag_accel import Accelerator, Options
from rag_accel.interception import option_reach

DIMENSION = 384


class Reversed(SimpleVectorStore):
    """A store whose search is its own."""

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        return super().query(query, **kwargs)


def store_of(number: int, cls: type[SimpleVectorStore] = SimpleVectorStore) -> SimpleVectorStore:
    store = cls()
    nodes = [TextNode(id_=str(at), text="a") for at in range(number)]
    for at, node in enumerate(nodes):
        node.embedding = [1.0 / (1 + at + place) for place in range(DIMENSION)]
    store.add(nodes)  # type: ignore[arg-type]
    return store


QUERY = VectorStoreQuery(query_embedding=[1.0] * DIMENSION, similarity_top_k=2)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: store_of(12), "(not now: small: 12 x 384 numbers, searched from 76,800 on)"),
        (lambda: store_of(12, Reversed), "(Reversed overrides a method of SimpleVectorStore; use"),
        (SimplePropertyGraphStore, "(small: 0 triplets, of 64)"),
        (HashEmbedding, "what this class does; RagAccelEmbedding embeds with a local model)"),
        (SimilarityPostprocessor, "(no engine of this library computes what this class does)"),
    ],
    ids=["small", "subclass", "graph", "embedding", "postprocessor"],
)
def test_each_part_says_why_no_engine_runs_it(
    make: Any, said: str, accelerator: Accelerator
) -> None:
    assert said in explain(make())


def test_a_client_for_each_call_names_the_setting(accelerator: Accelerator) -> None:
    base = pytest.importorskip("llama_index.llms.openai_like")
    model = base.OpenAILike(model="m", api_key="none", api_base="http://a/v1", reuse_client=False)
    assert "reuse_client=False makes a client a call; reuse_client=True" in explain(model)
    model.reuse_client = True
    assert "kv_reuse is exact and no RemoteLLM names its server" in explain(model)


def test_borrowed_and_owned_searches_are_told_apart(accelerator: Accelerator) -> None:
    fast = accelerate(store_of(300), accelerator=accelerator)
    with coverage(fast) as seen:
        for _ in range(8):
            fast.query(QUERY)
    calls = {call.method: call for call in seen.calls}
    steps: Any = accelerator.metrics.snapshot()["engines"]["retrieval#1"]  # type: ignore[index]
    assert calls["search"].scheduled == steps["items"] > 0
    assert calls["query"].borrowed == 8 - steps["items"]
    assert calls["query"].reason == "an engine of this library runs others of its calls"


def test_a_program_that_gets_nothing_is_named_with_its_parts(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(option_reach, "_numbers", count(1))
    postprocessor = SimilarityPostprocessor()
    with caplog.at_level(logging.WARNING, "llama_index_rag_accel"):
        fast = accelerate(postprocessor)
        accelerate(postprocessor)
        accelerate(SimilarityPostprocessor(), options=Options(max_requests=4))
    (record,) = caplog.records
    assert "SimilarityPostprocessor gets nothing but admission" in record.getMessage()
    assert fast.postprocess_nodes([NodeWithScore(node=TextNode(text="a"), score=1.0)])
