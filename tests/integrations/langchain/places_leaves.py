"""Make leaves that count their own calls, each of a class of its own.

A class made for one run is patched for that run only: what one run finds cannot hide that another
one found nothing. The counts are the truth that meters are compared with.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import LLM, BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.messages.tool import tool_call, tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore

#: What the meter calls each kind of leaf.
METERED = {
    "chat": "chat model",
    "llm": "language model",
    "retriever": "retriever",
    "store": "vector store",
    "embeddings": "embeddings",
    "compressor": "compressor",
}


class Tally:
    """Count the leaf calls of one run by kind; thread-safe.

    Args:
        error: the class of what every call raises.
        once: whether only the first call raises it.
    """

    def __init__(self, error: type[Exception] | None = None, once: bool = False) -> None:
        self._lock = threading.Lock()
        self._calls: Counter[str] = Counter()
        self._error, self._once = error, once

    def note(self, kind: str) -> None:
        """Count one call; raise an error if it is this call's turn."""
        with self._lock:
            self._calls[kind] += 1
            is_first = self._calls.total() == 1
        if self._error is not None and (is_first or not self._once):
            raise self._error(f"{kind} does not answer")

    def total(self) -> dict[str, int]:
        """Return the number of calls by kind."""
        with self._lock:
            return dict(self._calls)


def chat_class(tally: Tally) -> type[Any]:
    """Return a chat model's class: native both ways, calling the first tool it is offered."""

    class Chat(BaseChatModel):
        @property
        def _llm_type(self) -> str:
            return "counted"

        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            names = [getattr(tool, "name", None) or tool.__name__ for tool in tools]
            return self.bind(tools=names)

        def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
            tally.note("chat")
            return ChatResult(generations=[ChatGeneration(message=_reply(messages, kwargs))])

        async def _agenerate(
            self, messages: list[BaseMessage], *args: Any, **kwargs: Any
        ) -> ChatResult:
            tally.note("chat")
            await asyncio.sleep(0)
            return ChatResult(generations=[ChatGeneration(message=_reply(messages, kwargs))])

        def _stream(
            self, messages: list[BaseMessage], *args: Any, **kwargs: Any
        ) -> Iterator[ChatGenerationChunk]:
            tally.note("chat")
            yield from _chunks(_reply(messages, kwargs))

        async def _astream(
            self, messages: list[BaseMessage], *args: Any, **kwargs: Any
        ) -> AsyncIterator[ChatGenerationChunk]:
            tally.note("chat")
            for chunk in _chunks(_reply(messages, kwargs)):
                await asyncio.sleep(0)
                yield chunk

    return Chat


def llm_class(tally: Tally) -> type[Any]:
    """Return a completion model's class that knows only the sync way."""

    class Completion(LLM):
        @property
        def _llm_type(self) -> str:
            return "counted"

        def _call(self, prompt: str, *args: Any, **kwargs: Any) -> str:
            tally.note("llm")
            return digest(prompt)

    return Completion


def retriever_class(tally: Tally) -> type[Any]:
    """Return a retriever's class, native both ways."""

    class Retriever(BaseRetriever):
        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
            tally.note("retriever")
            return [Document(page_content=f"found {digest(query)}")]

        async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
            tally.note("retriever")
            await asyncio.sleep(0)
            return [Document(page_content=f"found {digest(query)}")]

    return Retriever


def embeddings_class(tally: Tally) -> type[Any]:
    """Return the class of embeddings by hash that know only the sync way."""

    class Hashed(Embeddings):
        def embed_query(self, text: str) -> list[float]:
            tally.note("embeddings")
            return _vector(text)

        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            tally.note("embeddings")
            return [_vector(text) for text in texts]

    return Hashed


def store_class(tally: Tally, counted_as: str = "store") -> type[Any]:
    """Return the class of a store over counting embeddings, both ways.

    ``counted_as`` says whose part its searches are: a retriever's, where only that searches it.
    """

    class Store(InMemoryVectorStore):
        def __init__(self) -> None:
            super().__init__(embeddings_class(tally)())
            for text in ("red apple", "green pear"):  # so that nobody counts their embedding
                entry = {"id": text, "vector": _vector(text), "text": text, "metadata": {}}
                self.store[text] = entry

        def similarity_search(self, *args: Any, **kwargs: Any) -> list[Document]:
            tally.note(counted_as)
            return super().similarity_search(*args, **kwargs)

        async def asimilarity_search(self, *args: Any, **kwargs: Any) -> list[Document]:
            tally.note(counted_as)
            return await super().asimilarity_search(*args, **kwargs)

    return Store


def compressor_class(tally: Tally) -> type[Any]:
    """Return the class of a compressor that knows only the sync way."""

    class Compressor(BaseDocumentCompressor):
        def compress_documents(self, documents: Any, query: str, callbacks: Any = None) -> Any:
            tally.note("compressor")
            return [Document(page_content=f"short {one.page_content}") for one in documents]

    return Compressor


CLASSES: dict[str, Callable[[Tally], type[Any]]] = {
    "chat": chat_class,
    "llm": llm_class,
    "retriever": retriever_class,
    "store": store_class,
    "embeddings": embeddings_class,
    "compressor": compressor_class,
}


def kind_of_engine(name: str) -> str:
    """Return which kind of leaf a borrowed engine's name, which ends in its class's, stands for."""
    ends = {
        "Chat": "chat",
        "Completion": "llm",
        "Retriever": "retriever",
        "VectorStoreRetriever": "retriever",
        "Store": "store",
        "Hashed": "embeddings",
        "Compressor": "compressor",
    }
    return ends.get(name.rpartition(".")[2], name)


def ask(leaf: Any, text: str) -> str:
    """Call a leaf of any kind, or a runnable made of one, and return its answer as text."""
    if isinstance(leaf, Embeddings):
        return text_of(leaf.embed_query(text))
    if isinstance(leaf, VectorStore):
        return text_of(leaf.similarity_search(text, k=1))
    if isinstance(leaf, BaseDocumentCompressor):
        return text_of(leaf.compress_documents([Document(page_content=text)], text))
    return text_of(leaf.invoke(text))


async def aask(leaf: Any, text: str) -> str:
    """Do as ``ask``, asynchronously."""
    if isinstance(leaf, Embeddings):
        return text_of(await leaf.aembed_query(text))
    if isinstance(leaf, VectorStore):
        return text_of(await leaf.asimilarity_search(text, k=1))
    if isinstance(leaf, BaseDocumentCompressor):
        return text_of(await leaf.acompress_documents([Document(page_content=text)], text))
    return text_of(await leaf.ainvoke(text))


def text_of(answer: Any) -> str:
    """Return what a leaf answered as text."""
    if isinstance(answer, BaseMessage):
        return str(answer.text)
    if isinstance(answer, list):
        return " ".join(text_of(part) for part in answer)
    return answer.page_content if isinstance(answer, Document) else str(answer)


def digest(text: str) -> str:
    """Return a word that follows from a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _vector(text: str) -> list[float]:
    return [byte / 255 + 0.01 for byte in hashlib.sha256(text.encode()).digest()[:4]]


def _reply(messages: list[BaseMessage], kwargs: dict[str, Any]) -> AIMessage:
    text = " ".join(str(message.text) for message in messages)
    if kwargs.get("tools") and not isinstance(messages[-1], ToolMessage):
        call = tool_call(name=kwargs["tools"][0], args={"query": digest(text)}, id="call-1")
        return AIMessage(content="", tool_calls=[call])
    return AIMessage(content=f"answer {digest(text)}")


def _chunks(reply: AIMessage) -> Iterator[ChatGenerationChunk]:
    if reply.tool_calls:
        (call,) = reply.tool_calls
        part = tool_call_chunk(
            name=call["name"], args=f'{{"query": "{call["args"]["query"]}"}}', id="call-1", index=0
        )
        yield _chunk("", [part], is_last=True)
        return
    first, second = str(reply.content).split(" ")
    yield _chunk(first + " ", [], is_last=False)
    yield _chunk(second, [], is_last=True)


def _chunk(text: str, calls: list[Any], *, is_last: bool) -> ChatGenerationChunk:
    position: Any = "last" if is_last else None
    message = AIMessageChunk(content=text, tool_call_chunks=calls, chunk_position=position)
    return ChatGenerationChunk(message=message)
