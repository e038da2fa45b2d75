"""Graphs whose stage walks from the entities of a question, and accelerators that run them."""

from __future__ import annotations

from typing import Any

from fake_runner import tokenizer
from graph_texts import PATIENCE_S
from tiny_chat import model

from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.engine_api import PromptUse
from rag_accel.engines import LocalLLM, MemoryGraph
from rag_accel.testing import FakeEngine

FACTS = [
    ("guide", "in", "lane"),
    ("lane", "holds", "keys"),
    ("lane", "holds", "values"),
    ("lane", "which", "Mount"),
    ("guide", "said", "Fuji"),
]
QUESTION, OTHER = "Where is the guide?", "Who is the guide, and why?"
PROMPT = "Facts:\n{found}\n\n{input}"


def local(**options: Any) -> LocalLLM:
    given = {"kv_reuse": "dependency", "runner": "torch", "pool_bytes": 1 << 24, **options}
    return LocalLLM(given.pop("model", None) or model(), tokenizer(), **given)


def over_graph() -> RAGraph:
    """Return a graph that walks from the entities of its question."""
    graph = RAGraph().add_graph_retrieval("found", link="words", hops=2, top_k=50)
    graph.add_generation("answer", PROMPT, max_tokens=6)
    return graph.add_edge(START, "found").add_edge("found", "answer").add_edge("answer", END)


def ask(
    accelerator: Accelerator, graph: RAGraph, question: str = QUESTION
) -> tuple[str, PromptUse]:
    """Return an answer, and how its prompt was computed."""
    handle = accelerator.submit(graph, input=question)
    return handle.result(PATIENCE_S), handle.usage.prompt


def walking(llm: LocalLLM, known: MemoryGraph | None = None, **options: Any) -> Accelerator:
    graph = MemoryGraph(FACTS) if known is None else known
    return Accelerator(llm=llm, graph=graph, embedder=FakeEngine(), **options)
