"""A graph of triples, embeddings that count words, and the stage that a retriever must equal."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

from graph_facts import embed, facts
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from lc_waiting import wait_until

from langchain_rag_accel import RagAccelGraphRetriever
from rag_accel import Accelerator

PATIENCE_S = 20.0


class WordEmbeddings(Embeddings):
    """Count words; a query waits for ``gate`` if there is one."""

    def __init__(self, gate: threading.Event | None = None) -> None:
        self.gate = gate
        self.entered = threading.Semaphore(0)
        self.queries: list[str] = []

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return embed(texts).tolist()

    def embed_query(self, text: str) -> list[float]:
        self.queries.append(text)
        self.entered.release()
        assert self.gate is None or self.gate.wait(PATIENCE_S), "nobody opened the gate"
        return embed([text])[0].tolist()


class AwaitedEmbeddings(WordEmbeddings):
    """Count words, on the caller's loop too; awaited queries wait for ``opened``."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = asyncio.Event()
        self.opened.set()

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        return self.embed_documents(texts)

    async def aembed_query(self, text: str) -> list[float]:
        vector = self.embed_query(text)
        await self.opened.wait()
        return vector


def assert_equal(found: list[Document], hits: list[Any]) -> None:
    """Check that documents are those of a stage: texts, order, paths and scores."""
    assert [one.page_content for one in found] == [hit.document.text for hit in hits]
    for document, hit in zip(found, hits, strict=True):
        told = document.metadata
        assert document.id == hit.document.id
        assert told["entities"] == list(hit.path.entities)
        assert told["relations"] == list(hit.path.relations)
        assert told["forward"] == list(hit.path.forward)
        assert abs(told["score"] - hit.score) <= 1e-6


def retriever(accelerator: Accelerator | None = None, **options: Any) -> RagAccelGraphRetriever:
    """Return a retriever of the facts, linked by vectors that count words."""
    given = {"graph": facts(), "embedding": WordEmbeddings(), **options}
    return RagAccelGraphRetriever(accelerator=accelerator, **given)


def texts(found: Sequence[Document]) -> list[str]:
    return [document.page_content for document in found]


async def soon(is_so: Callable[[], bool]) -> None:
    """Wait on the loop for what happens on it or in threads."""
    await asyncio.to_thread(wait_until, is_so, "a step of a search")
