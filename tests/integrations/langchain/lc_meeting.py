"""Make calls that return only if they overlap, and retrievers that make such calls."""

from __future__ import annotations

import threading
from collections.abc import Callable

from langchain_classic.retrievers import MultiQueryRetriever
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from lc_composites import Told
from lc_fakes import AsyncChat, AsyncRetriever, SyncChat, SyncRetriever, documents
from lc_runs import Runs

from rag_accel.recognition.known_classes import full_name

Find = Callable[[str], list[Document]]


def found(query: str) -> list[Document]:
    """Return what any of these calls finds."""
    return documents(query, "d")


class Meeting:
    """Be a call that returns only if others are under way at the same time."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size)

    def __call__(self, query: str) -> list[Document]:
        self._barrier.wait(10.0)
        return found(query)


def queries(number: int, find: Find) -> MultiQueryRetriever:
    """Return a retriever that searches for ``0``, ``1`` and so on."""
    chain = RunnableLambda(lambda _: [str(place) for place in range(number)])
    return MultiQueryRetriever(retriever=Told(find=find), llm_chain=chain)


#: For an accelerator to which what these tests make is thread-safe.
THREAD_SAFE = (
    *map(full_name, (Told, Meeting, AsyncChat, AsyncRetriever, SyncChat, SyncRetriever, Runs)),
    f"{full_name(queries)}.<locals>.<lambda>",
)
