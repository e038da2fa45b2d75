"""Pipelines and indexes take in what they take in plainly, and their texts share few steps."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llama_index.embeddings.huggingface")

from li_programs import recording, run_in_loop
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import BaseNode
from llama_index.core.storage.kvstore import SimpleKVStore
from llama_index.embeddings.huggingface import HuggingFaceEmbedding

from llama_index_rag_accel import accelerate, activate
from rag_accel import Accelerator
from rag_accel.engines.embedding.engine import SentenceTransformerEngine

pytestmark = pytest.mark.usefixtures("uncompiled")

WORDS = ["bridge", "ferry", "tram", "tunnel"]
COUNT = 24


class FailingError(Exception):
    """What a transformation or a text raises in these tests."""


@pytest.fixture
def embedding(minilm: HuggingFaceEmbedding) -> HuggingFaceEmbedding:
    """Give an embedding whose settings a test may change."""
    made = HuggingFaceEmbedding.model_construct(**minilm.__dict__)
    object.__setattr__(made, "__pydantic_private__", dict(minilm.__pydantic_private__ or {}))
    made._model = minilm._model
    return made


def documents(count: int = COUNT, tag: str = "") -> list[Document]:
    """Return short documents under fixed ids."""
    return [
        Document(text=f"The {WORDS[n % 4]} number {n}{tag}.", id_=f"{tag}{n}") for n in range(count)
    ]


def pipeline(embedding: BaseEmbedding, **arguments: Any) -> IngestionPipeline:
    """Return a pipeline that splits and embeds."""
    return IngestionPipeline(
        transformations=[SentenceSplitter(chunk_size=64, chunk_overlap=0), embedding], **arguments
    )


def embedded(nodes: Sequence[BaseNode]) -> tuple[list[str], Any]:
    """Return the texts of nodes, in order, and their vectors."""
    return [node.get_content() for node in nodes], np.array([node.embedding for node in nodes])


def assert_equal(found: Sequence[BaseNode], expected: Sequence[BaseNode]) -> None:
    """Check that nodes are the same with the same vectors."""
    (texts, vectors), (others, plain) = embedded(found), embedded(expected)
    assert texts == others
    assert np.allclose(vectors, plain, atol=1e-6)


def engines(accelerator: Accelerator) -> list[Any]:
    """Return what is known of the engines that embed."""
    known: Any = accelerator.metrics.snapshot().get("engines", {})
    return [engine for name, engine in known.items() if name.startswith("embedding#")]


def outcome(call: Any, *args: Any, **kwargs: Any) -> Any:
    """Return what a function returns, or the coroutine that it makes."""
    result = call(*args, **kwargs)
    return run_in_loop(result) if asyncio.iscoroutine(result) else result


def run(pipe: IngestionPipeline, way: str, **arguments: Any) -> Any:
    """Run a pipeline in one of its two ways."""
    return outcome(getattr(pipe, way), **arguments)


@pytest.mark.parametrize("way", ["run", "arun"])
def test_a_pipeline_gives_the_same_nodes_in_one_step(
    way: str, embedding: HuggingFaceEmbedding, accelerator: Accelerator
) -> None:
    plain = run(pipeline(embedding), way, documents=documents())
    fast = accelerate(pipeline(embedding), accelerator=accelerator)
    assert_equal(run(fast, way, documents=documents()), plain)
    (own,) = engines(accelerator)
    assert (own["steps"], own["items"]) == (1, COUNT)


@pytest.mark.parametrize("way", ["run", "arun"])
def test_events_and_spans_are_those_of_the_plain_run(
    way: str, embedding: HuggingFaceEmbedding, accelerator: Accelerator
) -> None:
    seen = []
    for pipe in (pipeline(embedding), accelerate(pipeline(embedding), accelerator=accelerator)):
        with recording() as (events, spans):
            run(pipe, way, documents=documents())
        seen.append((events, spans))
    assert seen[0] == seen[1]
    assert seen[0][0]["EmbeddingEndEvent"] == 3  # one for each chunk of ten


@pytest.mark.parametrize("way", ["run", "arun"])
def test_a_cache_of_embeddings_is_asked_before_anything_is_computed(
    way: str, embedding: HuggingFaceEmbedding, accelerator: Accelerator
) -> None:
    embedding.embeddings_cache = SimpleKVStore()
    fast = accelerate(pipeline(embedding, disable_cache=True), accelerator=accelerator)
    first = run(fast, way, documents=documents())
    (own,) = engines(accelerator)
    assert own["items"] == COUNT
    assert_equal(run(fast, way, documents=documents()), first)
    (own,) = engines(accelerator)
    assert own["items"] == COUNT


@pytest.mark.parametrize("way", ["get_text_embedding_batch", "aget_text_embedding_batch"])
def test_after_an_error_what_was_handed_over_is_released(
    way: str, embedding: HuggingFaceEmbedding, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, ended = threading.Event(), []
    step = SentenceTransformerEngine.step

    def waiting(self: Any, budget: Any) -> Any:
        gate.wait(10)
        outputs = step(self, budget)
        ended.extend(outputs)
        return outputs

    class Refusing(HuggingFaceEmbedding):
        def to_payload(self) -> dict[str, Any]:
            raise FailingError

    mine = Refusing.model_construct(**embedding.__dict__)
    object.__setattr__(mine, "__pydantic_private__", embedding.__pydantic_private__)
    monkeypatch.setattr(SentenceTransformerEngine, "step", waiting)
    with Accelerator(strict=True, max_batch=4) as accelerator:
        fast = accelerate(mine, accelerator=accelerator)
        with pytest.raises(FailingError):
            outcome(getattr(fast, way), [f"t{n}" for n in range(30)])
        gate.set()
        assert accelerator.bypassed == {}
    assert len(ended) <= 2  # of eight pieces: the one that ran, and one taken before the error


def test_a_text_that_fails_leaves_the_chunks_before_it_as_they_are(
    embedding: HuggingFaceEmbedding, monkeypatch: pytest.MonkeyPatch
) -> None:
    preprocess = embedding._model.preprocess

    def refusing(texts: list[str], **kwargs: Any) -> Any:
        if "bad" in texts:
            raise FailingError
        return preprocess(texts, **kwargs)

    monkeypatch.setattr(embedding._model, "preprocess", refusing)
    monkeypatch.setattr(HuggingFaceEmbedding._embed_with_retry.retry, "sleep", lambda _: None)
    texts = [*(f"t{n}" for n in range(15)), "bad", *(f"u{n}" for n in range(14))]
    seen = []
    for fast in (False, True):
        with Accelerator(strict=True) as accelerator:
            mine = accelerate(embedding, accelerator=accelerator) if fast else embedding
            with recording() as (events, _), pytest.raises(FailingError):
                mine.get_text_embedding_batch(texts)
            seen.append(events)
    assert seen[0]["EmbeddingEndEvent"] == 1
    assert seen[0] == seen[1]


async def test_a_batch_that_is_cancelled_releases_what_it_handed_over(
    embedding: HuggingFaceEmbedding, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, may_end, ended = threading.Event(), threading.Event(), []
    step = SentenceTransformerEngine.step

    def waiting(self: Any, budget: Any) -> Any:
        began.set()
        assert may_end.wait(10)
        outputs = step(self, budget)
        ended.extend(outputs)
        return outputs

    monkeypatch.setattr(SentenceTransformerEngine, "step", waiting)
    with Accelerator(strict=True, max_batch=4) as accelerator:
        fast = accelerate(embedding, accelerator=accelerator)
        batch = asyncio.create_task(fast.aget_text_embedding_batch([f"t{n}" for n in range(30)]))
        assert await asyncio.to_thread(began.wait, 10)
        batch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await batch
        may_end.set()
    assert len(ended) <= 2  # of eight pieces


# Indexes ---------------------------------------------------------------------------------------


def vectors_of(index: VectorStoreIndex) -> dict[str, list[float]]:
    """Return the vectors of an index by text."""
    ids: Any = index.vector_store.data.embedding_dict  # type: ignore[attr-defined]
    return {index.docstore.get_node(at).get_content(): vector for at, vector in ids.items()}


def assert_same_index(found: VectorStoreIndex, expected: VectorStoreIndex) -> None:
    """Check that two indexes hold the same texts with the same vectors, in the same order."""
    one, other = vectors_of(found), vectors_of(expected)
    assert list(one) == list(other)
    assert np.allclose(list(one.values()), list(other.values()), atol=1e-6)


def index_of(embedding: BaseEmbedding, count: int = COUNT, **arguments: Any) -> VectorStoreIndex:
    """Return an index of documents."""
    return VectorStoreIndex.from_documents(documents(count), embed_model=embedding, **arguments)


@pytest.mark.parametrize("use_async", [False, True])
def test_an_index_is_made_in_one_step(
    use_async: bool, embedding: HuggingFaceEmbedding, accelerator: Accelerator
) -> None:
    plain = index_of(embedding)
    with activate(accelerator):
        found = index_of(embedding, use_async=use_async)
    assert_same_index(found, plain)
    (own,) = engines(accelerator)
    assert (own["steps"], own["items"]) == (1, COUNT)


NEW = {
    "insert": lambda: documents(1, "new"),
    "ainsert": lambda: documents(1, "new"),
    "insert_nodes": lambda: [documents(COUNT, "new")],
    "ainsert_nodes": lambda: [documents(COUNT, "new")],
    "refresh_ref_docs": lambda: [[*documents(3), *documents(5, "new")]],
    "arefresh_ref_docs": lambda: [[*documents(3), *documents(5, "new")]],
    "update_ref_doc": lambda: [Document(text="Other.", id_="0")],
    "aupdate_ref_doc": lambda: [Document(text="Other.", id_="0")],
}


@pytest.mark.parametrize("name", NEW)
def test_inserting_into_an_accelerated_index_is_one_request(
    name: str, embedding: HuggingFaceEmbedding, accelerator: Accelerator
) -> None:
    plain, mine = index_of(embedding, 4), index_of(embedding, 4)
    fast = accelerate(mine, accelerator=accelerator)
    expected, found = (outcome(getattr(index, name), *NEW[name]()) for index in (plain, fast))
    assert found == expected
    assert_same_index(mine, plain)
    (own,) = engines(accelerator)
    assert own["items"] >= 1
