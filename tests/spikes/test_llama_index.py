"""A LlamaIndex query engine through the same driver: 16 requests at once, leaves intercepted.

No public API yet: the two leaf methods are exchanged by hand, as an integration will do it. The
engine keeps its control flow; only its embedding and completion calls are scheduled.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from rag_accel.accelerator import Accelerator, Work, current_request
from rag_accel.engine_api import (
    EngineBase,
    EngineOutput,
    EngineProfile,
    EngineRequest,
    PrimitiveKind,
    StepBudget,
    TextBatch,
)

pytest.importorskip("llama_index.core")

from llama_index.core import Document, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.types import CompletionResponse, LLMMetadata
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.llms.custom import CustomLLM
from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.span_handlers import SimpleSpanHandler

USERS = 16
QUESTIONS = [f"what is said about topic {number}?" for number in range(USERS)]


def _vector(text: str) -> list[float]:
    digest = hashlib.sha256(text.encode()).digest()
    return [byte / 255 for byte in digest[:16]]


class _Embedding(BaseEmbedding):
    def _get_query_embedding(self, query: str) -> list[float]:
        return _vector(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return _vector(text)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return _vector(query)


class _LLM(CustomLLM):
    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(model_name="scripted")

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text=hashlib.sha256(prompt.encode()).hexdigest())

    @llm_completion_callback()
    async def acomplete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponse:
        return await self.work(prompt)

    async def work(self, prompt: str) -> CompletionResponse:
        await asyncio.sleep(0.02)
        return CompletionResponse(text=hashlib.sha256(prompt.encode()).hexdigest())

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        raise NotImplementedError("the spike does not stream")


class _OwnedEmbedder(EngineBase):
    """Compute the same vectors in steps of 20 ms, and note the size of each."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self._waiting: list[EngineRequest] = []
        self._clock = __import__("time")

    @property
    def profile(self) -> EngineProfile:
        return EngineProfile(kinds=frozenset({PrimitiveKind.EMBEDDING}))

    def submit(self, work: Sequence[EngineRequest]) -> None:
        self._waiting += work

    def cancel(self, ids: Sequence[Any]) -> None:
        self._waiting = [one for one in self._waiting if one.id not in ids]

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        works, self._waiting = self._waiting, []
        self.batches.append(len(works))
        self._clock.sleep(0.02)
        return [
            EngineOutput(one.id, "final", np.array([_vector(t) for t in one.payload.texts]))
            for one in works
        ]


@contextmanager
def _intercepted(accelerator: Accelerator, embedder: _OwnedEmbedder) -> Iterator[None]:
    """Exchange the leaf methods of both classes, as often as the block lasts."""
    engine = accelerator.own(embedder, "embedder", lambda: embedder)
    llm = accelerator.borrow("llm", PrimitiveKind.DECODING)
    plain_embed, plain_complete = _Embedding._aget_query_embedding, _LLM.acomplete
    span = get_dispatcher().span

    async def embed(self: Any, query: str) -> list[float]:
        identity = current_request.get()
        if identity is None:
            return await plain_embed(self, query)
        work = Work(engine, PrimitiveKind.EMBEDDING, TextBatch((query,)))
        return (await accelerator.leaves.acompute(identity, work))[0].tolist()

    async def complete(self: Any, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        identity = current_request.get()
        if identity is None:
            return await self.work(prompt)
        return await accelerator.leaves.acall(
            identity, llm, PrimitiveKind.DECODING, lambda: self.work(prompt)
        )

    # Spans are named after what a class's own methods are called.
    complete.__name__, embed.__name__ = "acomplete", "_aget_query_embedding"
    _Embedding._aget_query_embedding = span(embed)  # type: ignore[method-assign]
    _LLM.acomplete = span(llm_completion_callback()(complete))  # type: ignore[method-assign]
    try:
        yield
    finally:
        _Embedding._aget_query_embedding = plain_embed  # type: ignore[method-assign]
        _LLM.acomplete = plain_complete  # type: ignore[method-assign]


async def _ask(engine: Any, accelerator: Accelerator | None, question: str) -> Any:
    if accelerator is None:
        return await engine.aquery(question)
    with accelerator.request("llama-index") as identity:
        token = current_request.set(identity)
        try:
            return await engine.aquery(question)
        finally:
            current_request.reset(token)


async def _ask_all(engine: Any, accelerator: Accelerator | None = None) -> tuple[list[Any], Any]:
    handler = SimpleSpanHandler()
    dispatcher = get_dispatcher()
    dispatcher.add_span_handler(handler)
    try:
        asked = [_ask(engine, accelerator, question) for question in QUESTIONS]
        answers = await asyncio.gather(*asked)
    finally:
        dispatcher.span_handlers.remove(handler)
    names = Counter(span.id_.partition("-")[0] for span in handler.completed_spans)
    return list(answers), names


@pytest.fixture
def query_engine() -> Any:
    documents = [Document(text=f"topic {number}: {_vector(str(number))}") for number in range(40)]
    index = VectorStoreIndex.from_documents(documents, embed_model=_Embedding())
    return index.as_query_engine(llm=_LLM(), similarity_top_k=3)


def _said(answer: Any) -> Any:
    nodes = [(node.node_id, node.score) for node in answer.source_nodes]
    return type(answer), answer.response, nodes, answer.metadata


async def test_answers_types_nodes_and_spans_equal_plain(query_engine: Any) -> None:
    plain, plain_spans = await _ask_all(query_engine)
    with Accelerator(strict=True) as accelerator, _intercepted(accelerator, _OwnedEmbedder()):
        scheduled, spans = await _ask_all(query_engine, accelerator)
    assert [_said(one) for one in scheduled] == [_said(one) for one in plain]
    assert spans == plain_spans


async def test_every_leaf_is_scheduled_and_requests_share_batches(query_engine: Any) -> None:
    embedder = _OwnedEmbedder()
    with Accelerator(strict=True) as accelerator, _intercepted(accelerator, embedder):
        for _ in range(3):
            await _ask_all(query_engine, accelerator)
    # The end of a borrowed call is told without waiting: closed, the driver has heard of all.
    cells: Any = accelerator.metrics.snapshot()["engines"]
    assert sum(embedder.batches) == 3 * USERS
    assert cells["llm"]["items"] == 3 * USERS
    # Tasks that become ready in the same turn of the loop ride in one step.
    assert sum(embedder.batches) / len(embedder.batches) >= 0.75 * USERS
