"""Default async methods leave the loop free for classes that the user names."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from li_off_loop import (
    AT_ONCE,
    QUESTION,
    knowing,
    meeting,
    parents_of_spans,
)
from li_programs import (
    EchoLLM,
    HashEmbedding,
    recording,
    run_in_loop,
)
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.types import ChatMessage, CompletionResponse
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.core.vector_stores import SimpleVectorStore, VectorStoreQuery
from pydantic import PrivateAttr

from llama_index_rag_accel import accelerate

pytestmark = pytest.mark.usefixtures("shared_models")


class SyncLLM(EchoLLM):
    """A model of the user's that has no async method."""

    during: Any = None

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        self.during(prompt)
        return super().complete(prompt, formatted, **kwargs)


class OwnRetriever(BaseRetriever):
    """A retriever of the user's that has no async method."""

    def __init__(self, during: Callable[[str], None]) -> None:
        self.during = during
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        self.during(query_bundle.query_str)
        return [NodeWithScore(node=TextNode(text="found", id_="one"), score=1.0)]


class OwnStore(SimpleVectorStore):
    """A store of the user's that has no async method."""

    _during: Any = PrivateAttr(default=None)

    def query(self, query: Any, **kwargs: Any) -> Any:
        self._during("")
        return super().query(query, **kwargs)


class OwnEmbedding(HashEmbedding):
    """An embedding of the user's."""

    _during: Any = PrivateAttr(default=None)

    def _get_text_embedding(self, text: str) -> list[float]:
        self._during("")
        return super()._get_text_embedding(text)


def _completing(during: Callable[[str], None]) -> Any:
    llm = SyncLLM(during=during)
    return llm, lambda one: one.acomplete(QUESTION)


def _chatting(during: Callable[[str], None]) -> Any:
    llm = SyncLLM(during=during)
    return llm, lambda one: one.achat([ChatMessage(QUESTION)])


def _retrieving(during: Callable[[str], None]) -> Any:
    return OwnRetriever(during), lambda one: one.aretrieve(QUESTION)


def _searching(during: Callable[[str], None]) -> Any:
    store = OwnStore()
    store._during = during
    store.add([TextNode(text="a", id_="a", embedding=[1.0, 0.0])])
    return store, lambda one: one.aquery(VectorStoreQuery([1.0, 0.0], similarity_top_k=1))


def _embedding(during: Callable[[str], None]) -> Any:
    embedding = OwnEmbedding()
    embedding._during = during
    return embedding, lambda one: one.aget_text_embedding("a")


LEAVES = {
    "acomplete": _completing,
    "achat": _chatting,
    "aretrieve": _retrieving,
    "aquery of a store": _searching,
    "aget_text_embedding": _embedding,
}
every_leaf = pytest.mark.parametrize("make", LEAVES.values(), ids=LEAVES)


def nothing(prompt: str) -> None:
    """Do nothing."""


@every_leaf
def test_a_default_async_method_of_a_named_class_leaves_the_loop_free(make: Any) -> None:
    async def all_at_once() -> list[Any]:
        return await asyncio.gather(*(call(fast) for _ in range(AT_ONCE)))

    obj, call = make(meeting())
    with knowing(type(obj)) as accelerator:
        fast = accelerate(obj, accelerator=accelerator)
        assert len(run_in_loop(all_at_once())) == AT_ONCE


@every_leaf
def test_a_default_async_method_of_another_class_stays_on_the_loop(make: Any) -> None:
    async def once() -> int:
        await call(fast)
        return threading.get_ident()

    threads = list[int]()
    obj, call = make(lambda prompt: threads.append(threading.get_ident()))
    with knowing() as accelerator:
        fast = accelerate(obj, accelerator=accelerator)
        assert threads == [run_in_loop(once())] * len(threads)
        assert threads != []


@every_leaf
def test_a_default_async_method_shows_the_same(make: Any) -> None:
    async def once(obj: Any) -> Any:
        return await call(obj)

    def seen(obj: Any) -> Any:
        with recording() as (events, spans), parents_of_spans() as parents:
            found = run_in_loop(once(obj))
        return str(found), events, spans, parents

    obj, call = make(nothing)
    with knowing(type(obj)) as accelerator:
        plain = seen(obj)
        assert seen(accelerate(obj, accelerator=accelerator)) == plain
