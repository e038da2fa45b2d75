"""LlamaIndex objects as ``rag-accel serve`` has them answer."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from llama_index.core.agent.workflow import AgentWorkflow
from llama_index.core.agent.workflow.base_agent import BaseWorkflowAgent
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.base.response.schema import AsyncStreamingResponse, StreamingResponse
from llama_index.core.chat_engine.types import BaseChatEngine, StreamingAgentChatResponse
from llama_index.core.memory import ChatMemoryBuffer, Memory
from workflows import Workflow

from llama_index_rag_accel.accelerate import accelerate, prepare
from rag_accel.accelerator import Accelerator
from rag_accel.errors import ConfigError
from rag_accel.serving.plain_values import as_answer_text
from rag_accel.serving.served import (
    MESSAGES,
    TEXT,
    EmbeddedRole,
    Served,
    ServedAnswer,
    ServedPiece,
    ServingTerms,
)

_CANCEL_S = 1.0


def serve_object(obj: Any, terms: ServingTerms) -> Served | None:
    """Return an object of LlamaIndex's as it is served; None for any other.

    Raises:
        ConfigError: a workflow without declared inputs, a chat engine with a memory that cannot be
            made again for each request, or inputs for an object that has its own.
    """
    known = (BaseQueryEngine, BaseChatEngine, Workflow, BaseEmbedding)
    if not isinstance(obj, known):
        return None
    if terms.inputs is not None and (_is_agent(obj) or not isinstance(obj, Workflow)):
        raise ConfigError(
            "this object names its input itself",
            where="--input",
            found=", ".join(terms.inputs),
            hint="leave --input out",
        )
    fast, accelerator = terms.accelerated(obj, accelerate, prepare)
    if isinstance(obj, BaseEmbedding):
        return LlamaIndexServedEmbedding(fast, accelerator)
    if isinstance(obj, BaseChatEngine):
        return LlamaIndexServedChat(fast, accelerator)
    if isinstance(obj, BaseQueryEngine):
        return LlamaIndexServedQuery(fast, accelerator)
    return LlamaIndexServedWorkflow(fast, accelerator, _workflow_inputs(obj, terms))


def _is_agent(obj: Any) -> bool:
    return isinstance(obj, AgentWorkflow | BaseWorkflowAgent)


def _workflow_inputs(workflow: Any, terms: ServingTerms) -> tuple[str, ...]:
    if _is_agent(workflow):
        return (MESSAGES,)
    if terms.inputs is None:
        raise ConfigError(
            "nothing says which arguments of the workflow's run a client may set",
            where="--input",
            valid="names of fields of its StartEvent",
        )
    return terms.inputs


class LlamaIndexServedEmbedding:
    """An embedding model."""

    def __init__(self, embedding: BaseEmbedding, accelerator: Accelerator | None) -> None:
        self._embedding, self.accelerator = embedding, accelerator

    async def embed(self, texts: Sequence[str], role: EmbeddedRole) -> Any:
        """Return a vector for each text."""
        if role == "document":
            return await self._embedding.aget_text_embedding_batch(list(texts))
        return [await self._embedding.aget_query_embedding(text) for text in texts]


class LlamaIndexServedQuery:
    """A query engine, which takes one text."""

    inputs = (TEXT,)

    def __init__(self, engine: BaseQueryEngine, accelerator: Accelerator | None) -> None:
        self._engine, self.accelerator = engine, accelerator

    async def answer(self, values: Mapping[str, Any], deadline_s: float | None) -> ServedAnswer:
        """Return the text of the engine's response."""
        text = "".join([piece.text async for piece in self.stream(values, deadline_s)])
        return ServedAnswer(text, text)

    async def stream(
        self, values: Mapping[str, Any], deadline_s: float | None
    ) -> AsyncIterator[ServedPiece]:
        """Yield text as the engine's response streams it, or all of it."""
        texts: Any = _texts_of(await self._engine.aquery(values[TEXT]))
        async with aclosing(texts):
            async for text in texts:
                yield ServedPiece(text)

    stream_answer = stream


class LlamaIndexServedChat:
    """A chat engine, with a memory of its own for each request: the messages of the client."""

    inputs = (MESSAGES,)

    def __init__(self, engine: Any, accelerator: Accelerator | None) -> None:
        self._engine, self.accelerator = engine, accelerator
        _memory_like(getattr(engine, "_memory", None), [])  # says now what cannot be served

    async def answer(self, values: Mapping[str, Any], deadline_s: float | None) -> ServedAnswer:
        """Return the text of the engine's response."""
        engine, question = self._opened(values)
        text = str(await engine.achat(question))
        return ServedAnswer(text, text)

    async def stream(
        self, values: Mapping[str, Any], deadline_s: float | None
    ) -> AsyncIterator[ServedPiece]:
        """Yield text as the engine streams it."""
        engine, question = self._opened(values)
        response: Any = await engine.astream_chat(question)
        texts: Any = _texts_of(response)
        try:
            async with aclosing(texts):
                async for text in texts:
                    yield ServedPiece(text)
        finally:
            writing = getattr(response, "awrite_response_to_history_task", None)
            if writing is not None:  # nobody reads what a cancelled request would still write
                writing.cancel()

    stream_answer = stream

    def _opened(self, values: Mapping[str, Any]) -> tuple[Any, str]:
        messages = _chat_messages(values)
        engine = copy.copy(self._engine)
        engine._memory = _memory_like(self._engine._memory, messages[:-1])
        return engine, str(messages[-1].content)


async def _texts_of(response: Any) -> AsyncIterator[str]:
    """Yield the text of an engine's response: as it is made, or whole where it is there already."""
    if isinstance(response, AsyncStreamingResponse | StreamingAgentChatResponse):
        texts: Any = response.async_response_gen()
        async with aclosing(texts):
            async for text in texts:
                yield text
        return
    if isinstance(response, StreamingResponse):
        response = await asyncio.to_thread(response.get_response)
    # Its text as a string is "None" where it has none.
    yield str(response) if response.response else ""


class LlamaIndexServedWorkflow:
    """A workflow, or an agent, which takes the messages of a chat.

    A chat gets its result as a whole: only that says which of its texts was the answer.
    """

    def __init__(
        self, workflow: Any, accelerator: Accelerator | None, inputs: tuple[str, ...]
    ) -> None:
        self._workflow, self.accelerator, self.inputs = workflow, accelerator, inputs
        self._is_agent = _is_agent(workflow)

    async def answer(self, values: Mapping[str, Any], deadline_s: float | None) -> ServedAnswer:
        handler = self._workflow.run(**self._arguments(values))
        try:
            result = await handler
        finally:
            await _end(handler)
        return _answer(result)

    async def stream(
        self, values: Mapping[str, Any], deadline_s: float | None
    ) -> AsyncIterator[ServedPiece]:
        """Yield the text of the events that have some, and the names of the others as steps."""
        handler = self._workflow.run(**self._arguments(values))
        said = False
        try:
            async for event in handler.stream_events():
                text = getattr(event, "delta", None)
                if isinstance(text, str):
                    if text:
                        said = True
                        yield ServedPiece(text)
                else:
                    yield ServedPiece(step=type(event).__name__)
            result = await handler
        finally:
            await _end(handler)
        if not said:
            yield ServedPiece(_answer(result).text)

    def _arguments(self, values: Mapping[str, Any]) -> dict[str, Any]:
        if not self._is_agent:
            return dict(values)
        messages = _chat_messages(values)
        return {"user_msg": messages[-1], "chat_history": messages[:-1]}


async def _end(handler: Any) -> None:
    """Have a run end whose request has ended."""
    if not handler.is_done():
        await handler.cancel_run(timeout=_CANCEL_S)


def _answer(result: Any) -> ServedAnswer:
    said = getattr(result, "response", None)  # of an agent, or a response of a query engine
    if isinstance(said, ChatMessage):
        said = said.content or ""
    if isinstance(said, str):
        return ServedAnswer(said, said)
    return ServedAnswer(result, as_answer_text(result))


def _chat_messages(values: Mapping[str, Any]) -> list[ChatMessage]:
    return [
        ChatMessage(role=message["role"], content=message["content"])
        for message in values[MESSAGES]
    ]


def _memory_like(memory: Any, history: list[ChatMessage]) -> Any:
    """Return a memory with the bounds of another, that holds only a client's messages."""
    limit: int | None = None
    if type(memory) is ChatMemoryBuffer:
        limit = memory.token_limit
    elif type(memory) is Memory and not memory.memory_blocks:
        # One of its own class would open a database for each request.
        limit = int(memory.token_limit * memory.chat_history_token_ratio)
    if limit is not None:
        return ChatMemoryBuffer.from_defaults(
            chat_history=history, token_limit=max(1, limit), tokenizer_fn=memory.tokenizer_fn
        )
    raise ConfigError(
        "the memory of this chat engine would be shared by all clients",
        found=type(memory).__name__,
        valid="a ChatMemoryBuffer, or a Memory without blocks",
    )
