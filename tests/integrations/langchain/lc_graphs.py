"""A graph of triples, embeddings that count words, and the stage that a retriever must equal."""

from __future__ import annotations

import asyncio
import re
import threading
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from lc_waiting import wait_until

from langchain_rag_accel import RagAccelGraphRetriever
from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.engine_api import EngineOutput, EngineRequest, PrimitiveKind, StepBudget, WorkId
from rag_accel.engines import CallableEmbeddingEngine, KnowledgeEngine, MemoryGraph

PATIENCE_S = 20.0

TRIPLES = [
    ("Ada Lovelace", "wrote to", "Charles Babbage"),
    ("Charles Babbage", "designed", "the Analytical Engine"),
    ("the Analytical Engine", "was built in", "no century"),
    ("Mary Somerville", "taught", "Ada Lovelace"),
    ("Ada Lovelace", "admired", "Mary Somerville"),
]
QUESTION = "What was designed by the man Ada Lovelace wrote to?"
CHAIN = "Ada Lovelace -> wrote to -> Charles Babbage -> designed -> the Analytical Engine"


def embed(texts: Sequence[str]) -> Any:
    """Return vectors that count words: ``[len(texts), 64], float32``."""
    rows = np.zeros((len(texts), 64), np.float32)
    for row, text in zip(rows, texts, strict=True):
        for word in re.findall(r"\w+", text.casefold()):
            row[zlib.crc32(word.encode()) % 64] += 1
    return rows


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


class Gathering(KnowledgeEngine):
    """A knowledge engine that is busy until it has so many requests of one kind."""

    def __init__(self, graph: MemoryGraph, num: int, *kinds: PrimitiveKind) -> None:
        super().__init__(graph)
        self.num, self.gathered = num, frozenset(kinds)
        self.held: dict[PrimitiveKind, list[EngineRequest]] = {kind: [] for kind in kinds}

    def submit(self, work: Sequence[EngineRequest]) -> None:
        for request in work:
            if request.kind in self.held:
                self.held[request.kind].append(request)
            else:
                super().submit([request])

    def cancel(self, ids: Sequence[WorkId]) -> None:
        for held in self.held.values():
            held[:] = [request for request in held if request.id not in ids]
        super().cancel(ids)

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        for held in self.held.values():
            if len(held) >= self.num:
                super().submit(held)
                held.clear()
        # Something must be told of what is held.
        waiting = [EngineOutput(one.id, "progress") for held in self.held.values() for one in held]
        return [*super().step(budget), *waiting]


def facts() -> MemoryGraph:
    """Return a graph whose entities have vectors."""
    graph = MemoryGraph(TRIPLES)
    graph.embed(embed)
    return graph


def by_stage(graph: MemoryGraph, query: str, keywords: Any = None, **options: Any) -> list[Any]:
    """Return what a stage finds: texts, scores and paths."""
    if keywords is not None:
        options["keywords"] = "names"
    stage = RAGraph(("input", "names")).add_graph_retrieval("facts", **options)
    stage.add_edge(START, "facts").add_edge("facts", END)
    embedder = CallableEmbeddingEngine(embed, pure=True)
    with Accelerator(graph=graph, embedder=embedder, strict=True) as accelerator:
        return list(accelerator.run(stage, input=query, names=keywords))


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
    """Return the texts of documents."""
    return [document.page_content for document in found]


async def soon(is_so: Callable[[], bool]) -> None:
    """Wait on the loop for what happens on it or in threads."""
    await asyncio.to_thread(wait_until, is_so, "a step of a search")
