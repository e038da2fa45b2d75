"""Hops of LlamaIndex's graph retrievers: what each finds alone, in steps that all callers share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from li_graph_programs import GraphLLM, filled, found, vectors
from li_programs import HashEmbedding, run_in_loop
from llama_index.core.graph_stores import SimplePropertyGraphStore
from llama_index.core.indices.property_graph import (
    LLMSynonymRetriever,
    PGRetriever,
    VectorContextRetriever,
)

from llama_index_rag_accel import accelerate, activate
from rag_accel import Accelerator
from rag_accel_adapters.llama_index import graph_stores

AT_ONCE = 16
QUESTIONS = [f"What does E{at} lead to?" for at in range(AT_ONCE)]
#: searches of an unchanged store before its triplets are indexed
WARM = 2


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let steps be shared over small stores, too."""
    monkeypatch.setattr(graph_stores, "MIN_TRIPLETS", 1)
    monkeypatch.setattr(graph_stores, "MIN_SHARED_TRIPLETS", 1)


def context(store: Any, **options: Any) -> VectorContextRetriever:
    """Return a retriever by vectors."""
    embedding = HashEmbedding()
    options = {"path_depth": 2, "limit": 50, **options}
    return VectorContextRetriever(
        store, embed_model=embedding, vector_store=vectors(embedding), **options
    )


def synonyms(store: Any, **options: Any) -> LLMSynonymRetriever:
    """Return a retriever by words of a model."""
    return LLMSynonymRetriever(store, llm=GraphLLM(), **{"path_depth": 2, **options})


def together(program: Any, questions: list[str]) -> list[Any]:
    """Return what tasks of one loop find, each what ``found`` shows."""

    async def all_at_once() -> list[Any]:
        return await asyncio.gather(*(program.aretrieve(one) for one in questions))

    return [found(nodes) for nodes in run_in_loop(all_at_once())]


def steps(accelerator: Accelerator) -> tuple[int, int]:
    """Return the steps of all engines of hops, and the hops that they made."""
    engines = accelerator.metrics.snapshot()["engines"]
    ours = [counts for name, counts in engines.items() if name.startswith("graph#")]
    return sum(one["steps"] for one in ours), sum(one["hop_requests"] for one in ours)


def warm(program: Any) -> None:
    """Have the triplets of a program's store indexed."""
    for _ in range(WARM):
        program.retrieve(QUESTIONS[0])


def alone(program: Any) -> list[Any]:
    """Return what a plain program finds for each question."""
    return [found(program.retrieve(question)) for question in QUESTIONS]


MAKE: dict[str, Callable[..., Any]] = {"context": context, "synonyms": synonyms}


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("name", MAKE)
def test_callers_on_one_loop_take_one_step_a_hop(
    accelerator: Accelerator, name: str, depth: int
) -> None:
    store = filled(SimplePropertyGraphStore())
    program = PGRetriever([MAKE[name](store, path_depth=depth, limit=10_000)])
    plain = alone(program)
    assert all(plain)
    fast = accelerate(program, accelerator=accelerator)
    warm(fast)
    assert together(fast, QUESTIONS) == plain
    assert steps(accelerator) == (depth, AT_ONCE * depth)


def test_activated_callers_on_one_loop_take_one_step_a_hop(accelerator: Accelerator) -> None:
    program = PGRetriever([context(filled(SimplePropertyGraphStore()), include_text=False)])
    plain = alone(program)
    with activate(accelerator):
        warm(program)
        assert together(program, QUESTIONS) == plain
        assert steps(accelerator) == (2, 2 * AT_ONCE)
    assert together(program, QUESTIONS) == plain
    assert steps(accelerator) == (2, 2 * AT_ONCE)


def test_a_lone_caller_takes_no_step(accelerator: Accelerator) -> None:
    fast = accelerate(context(filled(SimplePropertyGraphStore())), accelerator=accelerator)
    for _ in range(4):
        fast.retrieve(QUESTIONS[0])
        together(fast, QUESTIONS[:1])
    assert steps(accelerator) == (0, 0)
