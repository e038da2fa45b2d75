"""Build the chain that is served: a FAISS retriever, a prompt and a chat model of 20 ms."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough

CALL_S = 0.020
WORDS = 8
PROMPT = "Answer from these pages.\n\n{context}\n\nQuestion: {question}"


class WaitingChatModel(BaseChatModel):
    """A chat model that waits as a remote one does, then answers with what tells prompts apart."""

    @property
    def _llm_type(self) -> str:
        return "waiting"

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        time.sleep(CALL_S)
        return _result(messages)

    async def _agenerate(
        self, messages: list[BaseMessage], *args: Any, **kwargs: Any
    ) -> ChatResult:
        await asyncio.sleep(CALL_S)
        return _result(messages)

    def _stream(
        self, messages: list[BaseMessage], *args: Any, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        time.sleep(CALL_S)
        yield from map(_chunk, _words(messages))

    async def _astream(
        self, messages: list[BaseMessage], *args: Any, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        await asyncio.sleep(CALL_S)
        for word in _words(messages):
            yield _chunk(word)


def build_chain(store: Any) -> Any:
    """Return the chain, as LangChain's documentation teaches it."""
    retriever = store.as_retriever(search_kwargs={"k": 4})
    given = {"context": retriever | _joined, "question": RunnablePassthrough()}
    prompt = ChatPromptTemplate.from_template(PROMPT)
    return given | prompt | WaitingChatModel() | StrOutputParser()


def _joined(documents: Sequence[Document]) -> str:
    return "\n\n".join(document.page_content for document in documents)


def _result(messages: Sequence[BaseMessage]) -> ChatResult:
    message = AIMessage("".join(_words(messages)))
    return ChatResult(generations=[ChatGeneration(message=message)])


def _words(messages: Sequence[BaseMessage]) -> list[str]:
    """Return the same words, with a space each, for the same prompt only."""
    digest = hashlib.sha256(messages[-1].text.encode()).hexdigest()
    width = len(digest) // WORDS
    return [f"{digest[at : at + width]} " for at in range(0, len(digest), width)]


def _chunk(word: str) -> ChatGenerationChunk:
    return ChatGenerationChunk(message=AIMessageChunk(content=word))
