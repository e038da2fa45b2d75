"""Be the models, retrievers and embeddings a user might have; answers follow from the input."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForLLMRun,
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForLLMRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import LLM, BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.retrievers import BaseRetriever
from pydantic import BaseModel, ConfigDict, Field

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")


@dataclass(frozen=True, slots=True)
class Where:
    """Record where a call ran."""

    thread: int
    loop: asyncio.AbstractEventLoop | None
    tenant: str


def here() -> Where:
    """Return where the caller runs."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        loop = None
    return Where(threading.get_ident(), loop, TENANT.get())


class Journal:
    """Record calls and how many were under way at once; thread-safe, never copied."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.calls: list[Where] = []
        self.under_way = 0
        self.peak = 0

    @contextmanager
    def call(self) -> Iterator[None]:
        """Record one call for as long as the block runs."""
        with self._lock:
            self.calls.append(here())
            self.under_way += 1
            self.peak = max(self.peak, self.under_way)
        try:
            yield
        finally:
            with self._lock:
                self.under_way -= 1

    def __deepcopy__(self, memo: object) -> Journal:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (Journal, ())


class Fake(BaseModel):
    """Hold what all fakes share: a journal, an optional error, an optional gate."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    journal: Journal = Field(default_factory=Journal, exclude=True, repr=False)
    error: Any = None
    flaky: bool = False
    """Whether only the first call with each input raises the error."""
    failed: set[str] = Field(default_factory=set, exclude=True, repr=False)

    def check(self, given: Any) -> None:
        """Raise the error if it is this call's turn."""
        if self.error is None or (self.flaky and str(given) in self.failed):
            return
        self.failed.add(str(given))
        raise self.error


def answer(messages: list[BaseMessage] | str, stop: list[str] | None = None) -> str:
    """Return an answer of a few words that tells the prompt apart from any other."""
    text = messages if isinstance(messages, str) else " / ".join(str(m.text) for m in messages)
    digest = hashlib.sha256(text.encode()).hexdigest()[:6]
    full = f"answer {digest} to {text[-24:]}"
    for word in stop or ():
        full = full.split(word)[0]
    return full


class SyncChat(Fake, BaseChatModel):
    """Answer, only synchronously, never streaming."""

    temperature: float = 0.0

    @property
    def _llm_type(self) -> str:
        return "fake-sync"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        with self.journal.call():
            self.check(messages)
            return _result(answer(messages, stop), kwargs)


class StreamingChat(SyncChat):
    """Answer and stream, synchronously."""

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        with self.journal.call():
            self.check(messages)
            for chunk in _chunks(answer(messages, stop)):
                if run_manager is not None:
                    run_manager.on_llm_new_token(str(chunk.message.content), chunk=chunk)
                yield chunk


class AsyncChat(StreamingChat):
    """Answer and stream, both ways; asynchronous calls wait for ``gate`` if there is one."""

    gate: Any = Field(default=None, exclude=True)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        with self.journal.call():
            await _passed(self.gate)
            self.check(messages)
            return _result(answer(messages, stop), kwargs)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        with self.journal.call():
            await _passed(self.gate)
            self.check(messages)
            for chunk in _chunks(answer(messages, stop)):
                if run_manager is not None:
                    await run_manager.on_llm_new_token(str(chunk.message.content), chunk=chunk)
                yield chunk


class FakeLLM(Fake, LLM):
    """Complete a prompt, only synchronously."""

    @property
    def _llm_type(self) -> str:
        return "fake-completion"

    def _call(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> str:
        with self.journal.call():
            self.check(prompt)
            return answer(prompt, stop)


class SyncRetriever(Fake, BaseRetriever):
    """Retrieve two documents that follow from the question, only synchronously."""

    prefix: str = "d"

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        with self.journal.call():
            self.check(query)
            return documents(query, self.prefix)


class AsyncRetriever(SyncRetriever):
    """Retrieve both ways; asynchronous calls wait for ``gate`` if there is one."""

    gate: Any = Field(default=None, exclude=True)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun
    ) -> list[Document]:
        with self.journal.call():
            await _passed(self.gate)
            self.check(query)
            return documents(query, self.prefix)


class OldRetriever(Fake, BaseRetriever):
    """Retrieve without knowing of run managers, as retrievers once did."""

    def _get_relevant_documents(self, query: str) -> list[Document]:  # type: ignore[override]
        with self.journal.call():
            self.check(query)
            return documents(query, "old")


class TenantRetriever(BaseRetriever):
    """Retrieve what the current tenant may see, from whatever context the call runs in."""

    journal: Any = Field(default_factory=Journal, exclude=True)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        with self.journal.call():
            return [Document(page_content=f"{TENANT.get()}: {query}")]


class FakeEmbeddings(Embeddings):
    """Embed by hash, only synchronously."""

    def __init__(self, error: Exception | None = None) -> None:
        self.journal = Journal()
        self.error = error

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        with self.journal.call():
            if self.error is not None:
                raise self.error
            return [vector_of(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


class AsyncEmbeddings(FakeEmbeddings):
    """Embed by hash, both ways."""

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        with self.journal.call():
            await asyncio.sleep(0)
            return [vector_of(text) for text in texts]

    async def aembed_query(self, text: str) -> list[float]:
        return (await self.aembed_documents([text]))[0]


def documents(query: str, prefix: str) -> list[Document]:
    """Return the documents any fake finds for a question."""
    return [
        Document(page_content=f"{prefix}{number} of {query}", metadata={"number": number})
        for number in range(2)
    ]


def vector_of(text: str) -> list[float]:
    """Return four numbers that follow from a text."""
    digest = hashlib.sha256(text.encode()).digest()
    return [byte / 255 + 0.01 for byte in digest[:4]]


async def _passed(gate: Any) -> None:
    if gate is None:
        await asyncio.sleep(0)
    else:
        await gate.wait()


def _result(text: str, kwargs: dict[str, Any]) -> ChatResult:
    message = AIMessage(
        content=text,
        response_metadata={"model_name": "fake", "kwargs": sorted(kwargs)},
        usage_metadata={"input_tokens": 3, "output_tokens": 4, "total_tokens": 7},
    )
    return ChatResult(generations=[ChatGeneration(message=message)])


def _chunks(text: str) -> Iterator[ChatGenerationChunk]:
    words = text.split(" ")
    for index, word in enumerate(words):
        last = index == len(words) - 1
        message = AIMessageChunk(
            content=word if last else word + " ", chunk_position="last" if last else None
        )
        yield ChatGenerationChunk(message=message)
