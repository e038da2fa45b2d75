"""A small graph of triples, vectors that count words, and the stage that a retriever must equal."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.engine_api import EngineOutput, EngineRequest, PrimitiveKind, StepBudget, WorkId
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


def embed(texts: Sequence[str]) -> Any:
    """Return vectors that count words: ``[len(texts), 64], float32``."""
    rows = np.zeros((len(texts), 64), np.float32)
    for row, text in zip(rows, texts, strict=True):
        for word in re.findall(r"\w+", text.casefold()):
            row[zlib.crc32(word.encode()) % 64] += 1
    return rows


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
