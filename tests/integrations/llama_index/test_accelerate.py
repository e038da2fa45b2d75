"""What ``accelerate`` gives for LlamaIndex objects, and what it says of others."""

from __future__ import annotations

import pickle

import pytest
from li_programs import HashEmbedding, Parts
from llama_index.core.postprocessor import SimilarityPostprocessor

from llama_index_rag_accel import accelerate
from rag_accel import Accelerator


def steps(accelerator: Accelerator) -> int:
    """Return how many calls the scheduler has heard of."""
    engines = accelerator.metrics.snapshot()["engines"]
    return sum(engine["steps"] for engine in engines.values())


def test_a_leaf_is_scheduled_call_by_call(accelerator: Accelerator) -> None:
    fast = accelerate(HashEmbedding(), accelerator=accelerator)
    assert isinstance(fast, HashEmbedding)
    assert fast.get_query_embedding("a") == HashEmbedding().get_query_embedding("a")
    assert fast.get_text_embedding_batch(["a", "b"]) == [
        HashEmbedding().get_text_embedding(text) for text in ("a", "b")
    ]
    assert steps(accelerator) == 2


def test_a_pickled_leaf_comes_back_accelerated() -> None:
    back = pickle.loads(pickle.dumps(accelerate(SimilarityPostprocessor(similarity_cutoff=0.5))))
    assert type(back).__rag_accel__
    assert back.similarity_cutoff == 0.5


@pytest.mark.parametrize("way", ["as_query_engine", "as_retriever", "as_chat_engine"])
def test_what_an_index_makes_is_accelerated(accelerator: Accelerator, way: str) -> None:
    parts = Parts()
    made = getattr(accelerate(parts.index(), accelerator=accelerator), way)(llm=parts.llm)
    assert type(made).__rag_accel__
