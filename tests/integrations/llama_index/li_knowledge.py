"""A graph of triples, an embedding that counts words, and the stage that a retriever must equal."""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.schema import NodeWithScore
from pydantic import PrivateAttr

from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.engine_api import EngineOutput, EngineRequest, PrimitiveKind, StepBudget
from rag_accel.engines import CallableEmbeddingEngine, KnowledgeEngine, MemoryGraph

TRIPLES = [
    ("Ada Lovelace", "wrote to", "Charles Babbage"),
    ("Charles Babbage", "designed", "the Analytical Engine"),
    ("the Analytical Engine", "was built in", "no century"),
    ("Mary Somerville", "taught", "Ada Lovelace"),
    ("Ada Lovelace", "admired", "Mary Somerville"),
]
QUESTION = "What was designed by the man Ada Lovelace wrote to?"
CHAIN = "Ada Lovelace -> wrote to -> Charles Babbage -> designed -> the Analytical Engine"


def embed(texts: Sequence[str]) -> np.ndarray:
    """Return vectors that count words: ``[len(texts), 64], float32``."""
    rows = np.zeros((len(texts), 64), np.float32)
    for row, text in zip(rows, texts, strict=True):
        for word in re.findall(r"\w+", text.casefold()):
            row[zlib.crc32(word.encode()) % 64] += 1
    return rows


class WordEmbedding(BaseEmbedding):
    """An embedding that counts words; awaited queries wait for ``opened``."""

    _opened: asyncio.Event = PrivateAttr(default_factory=asyncio.Event)
    _queries: list[str] = PrivateAttr(default_factory=list)

    def __init__(self, *, is_open: bool = True, **arguments: Any) -> None:
        super().__init__(**arguments)
        if is_open:
            self._opened.set()

    def _get_text_embedding(self, text: str) -> list[float]:
        return embed([text])[0].tolist()

    def _get_query_embedding(self, query: str) -> list[float]:
        self._queries.append(query)
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        vector = self._get_query_embedding(query)
        await self._opened.wait()
        return vector


class Gathering(KnowledgeEngine):
    """A knowledge engine that waits in each hop until so many requests are in it."""

    def __init__(self, graph: MemoryGraph, num: int) -> None:
        super().__init__(graph)
        self.num = num
        self.held: list[EngineRequest] = []

    def submit(self, work: Sequence[EngineRequest]) -> None:
        hops = [request for request in work if request.kind is PrimitiveKind.EXPANDING]
        self.held += hops
        super().submit([request for request in work if request not in hops])

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        if len(self.held) >= self.num:
            super().submit(self.held)
            self.held = []
        # Something must be told of what is held.
        waiting = [EngineOutput(request.id, "progress") for request in self.held]
        return [*super().step(budget), *waiting]


def facts() -> MemoryGraph:
    """Return a graph whose entities have vectors."""
    graph = MemoryGraph(TRIPLES)
    graph.embed(embed)
    return graph


def by_stage(graph: Any, query: str, **options: Any) -> list[Any]:
    """Return what a stage finds: texts, scores and paths."""
    stage = RAGraph().add_graph_retrieval("facts", **options)
    stage.add_edge(START, "facts").add_edge("facts", END)
    embedder = CallableEmbeddingEngine(lambda texts: list(embed(texts)), pure=True)
    with Accelerator(graph=graph, embedder=embedder, strict=True) as accelerator:
        return list(accelerator.run(stage, input=query))


def assert_equal(found: list[NodeWithScore], hits: list[Any]) -> None:
    """Check that nodes are those of a stage: texts, order, paths and scores."""
    assert [one.text for one in found] == [hit.document.text for hit in hits]
    for one, hit in zip(found, hits, strict=True):
        assert one.node_id == hit.document.id
        assert one.metadata == {
            "entities": list(hit.path.entities),
            "relations": list(hit.path.relations),
            "forward": list(hit.path.forward),
        }
        assert one.score is not None
        assert abs(one.score - hit.score) <= 1e-6


async def soon(is_true: Any) -> None:
    """Wait until a condition holds."""
    for _ in range(4000):
        if is_true():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never came true")
