"""Offer leaves that answer from their input alone, take little time and count their calls."""

from __future__ import annotations

import asyncio
import re
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.vectorstores import InMemoryVectorStore, VectorStoreRetriever

ANSWER_S = 0.002
TOP_K = 4
SUBJECTS = (
    *("bridge", "ferry", "harbour", "library", "lighthouse", "market", "museum", "quarry"),
    *("railway", "reservoir", "theatre", "tower"),
)
_FACTS = (
    "The {subject} opened in {year} and is kept by {people} people.",
    "The {subject} was rebuilt after the flood of {year}.",
    "Visitors of the {subject} pay {people} coins since {year}.",
)
_DIMENSIONS = 64

Reply = Callable[[Sequence[BaseMessage]], AIMessage]


class LeafCalls:
    """The number of leaf calls of one program, counted from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total = 0

    @property
    def total(self) -> int:
        """Return how many calls there were so far."""
        return self._total

    def add(self, number: int) -> None:
        """Count calls."""
        with self._lock:
            self._total += number


class WaitingChatModel(BaseChatModel):
    """A chat model that answers after 2 ms; what it says is ``reply`` of the messages."""

    reply: Reply
    calls: LeafCalls

    @property
    def _llm_type(self) -> str:
        return "waiting"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        time.sleep(ANSWER_S)
        return self._answer(messages)

    async def _agenerate(
        self, messages: list[BaseMessage], *args: Any, **kwargs: Any
    ) -> ChatResult:
        await asyncio.sleep(ANSWER_S)
        return self._answer(messages)

    def _answer(self, messages: list[BaseMessage]) -> ChatResult:
        self.calls.add(1)
        return ChatResult(generations=[ChatGeneration(message=self.reply(messages))])


class WordEmbeddings(Embeddings):
    """Counts of a text's words, each in the dimension its hash names. Async is inherited."""

    def __init__(self, calls: LeafCalls) -> None:
        self._calls = calls

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a query."""
        # One query is embedded for each call of a retriever, which is a leaf call as well.
        self._calls.add(2)
        return _embed(text)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vectors of documents; only a store that is being filled asks for them."""
        return [_embed(text) for text in texts]


def text_model(reply: Callable[[str], str], calls: LeafCalls) -> WaitingChatModel:
    """Return a chat model that says ``reply`` of all it was told."""
    return WaitingChatModel(reply=lambda messages: AIMessage(reply(told(messages))), calls=calls)


def new_retriever(calls: LeafCalls, collection: str = "guide") -> VectorStoreRetriever:
    """Return a retriever over a fresh store of 36 documents."""
    store = InMemoryVectorStore(WordEmbeddings(calls))
    store.add_documents(_documents(collection))
    return store.as_retriever(search_kwargs={"k": TOP_K})


def told(messages: Sequence[BaseMessage]) -> str:
    """Return the text of messages, one a line."""
    return "\n".join(str(message.content) for message in messages)


def written(prompt: str) -> str:
    """Return an answer that is equal only where the prompts are."""
    return f"answer {seed(prompt):08x}"


def verdict(prompt: str) -> str:
    """Return ``yes`` to two of three prompts, else ``no``."""
    return "yes" if seed(prompt) % 3 else "no"


def rewritten(prompt: str) -> str:
    """Return the last line of the prompt and a subject that the prompt picks."""
    return f"{prompt.splitlines()[-1]} {SUBJECTS[seed(prompt) % len(SUBJECTS)]}"


def listed(prompt: str) -> str:
    """Return two to four subjects that the prompt picks, one a line."""
    first = seed(prompt)
    return "\n".join(SUBJECTS[(first + place) % len(SUBJECTS)] for place in range(2 + first % 3))


def seed(text: str) -> int:
    """Return a number that the text determines, in every process."""
    return zlib.crc32(text.encode())


def _embed(text: str) -> list[float]:
    vector = [0.0] * _DIMENSIONS
    for word in re.findall(r"\w+", text.lower()):
        vector[seed(word) % _DIMENSIONS] += 1.0
    return vector


def _documents(collection: str) -> list[Document]:
    """Return three documents on each subject, as a guide or as another collection tells it."""
    return [
        Document(f"{fact} ({collection})", id=f"{collection}-{subject}-{place}")
        for subject in SUBJECTS
        for place, template in enumerate(_FACTS)
        for fact in [_fact(template, f"{collection} {subject} {place}", subject)]
    ]


def _fact(template: str, key: str, subject: str) -> str:
    return template.format(subject=subject, year=1800 + seed(key) % 200, people=seed(key) % 40)
