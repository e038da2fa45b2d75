"""What replaces a method in a class of LlamaIndex is seen through twins made before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from llama_index.core import MockEmbedding, VectorStoreIndex
from llama_index.core.base.response.schema import Response
from llama_index.core.llms import CompletionResponse, MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import TextNode

from llama_index_rag_accel import accelerate
from rag_accel import Accelerator


def engine() -> Any:
    index = VectorStoreIndex([TextNode(text="one")], embed_model=MockEmbedding(embed_dim=3))
    return index.as_query_engine(llm=MockLLM())


def patched_complete(self: Any, prompt: str, *args: Any, **kwargs: Any) -> CompletionResponse:
    return CompletionResponse(text="patched")


def patched_embedding(self: Any, text: str) -> list[float]:
    return [7.0]


def patched_query(self: Any, question: Any) -> Response:
    return Response("patched")


CASES: dict[str, tuple[Callable[[], Any], type, str, Any, Callable[[Any], Any]]] = {
    "complete": (
        MockLLM,
        MockLLM,
        "complete",
        patched_complete,
        lambda made: made.complete("a").text,
    ),
    "_get_query_embedding": (
        lambda: MockEmbedding(embed_dim=3),
        MockEmbedding,
        "_get_query_embedding",
        patched_embedding,
        lambda made: made.get_query_embedding("a"),
    ),
    "query": (
        engine,
        RetrieverQueryEngine,
        "query",
        patched_query,
        lambda made: str(made.query("a")),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_class_patched_after_its_twin_was_made_is_seen(
    name: str, accelerator: Accelerator
) -> None:
    make, cls, method, patch, ask = CASES[name]
    plain = make()
    made = accelerate(plain, accelerator=accelerator)
    before = ask(made)
    with mock.patch.object(cls, method, patch):
        patched = ask(plain)
        assert ask(made) == patched != before
    assert ask(made) == before == ask(plain)
