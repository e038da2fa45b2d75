"""Every ready-made workflow takes the documents of its prompts from kept state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from chunk_prompts import tokens
from graph_texts import (
    TEXTS,
    WORKFLOWS,
    WatchedEngine,
    inputs_of,
    passage_texts,
    run_all,
    searching,
    use_of,
)

from rag_accel import Accelerator, RAGraph, workflows


def run(accelerator: Accelerator, graph: RAGraph) -> Any:
    return accelerator.run(graph, **inputs_of(graph))


def astream(accelerator: Accelerator, graph: RAGraph) -> Any:
    async def whole() -> str:
        return "".join([text async for text in accelerator.astream(graph, **inputs_of(graph))])

    return asyncio.run(whole())


WAYS = (run, astream)


def check_answers(engine: WatchedEngine, start: int) -> int:
    """Check that all documents of these prompts came from kept state; return how many did."""
    seen = 0
    for asked, done in engine.answers(start):
        texts = passage_texts(asked)
        content = "\n".join(message.content for message in asked.messages)
        assert len(texts) == sum(content.count(text) for text in TEXTS)
        assert set(texts) <= set(TEXTS)
        use = use_of(done)
        assert use.from_chunks == use.approximate == tokens(*texts)
        assert use.computed + use.from_prefix + use.from_chunks == done.prompt_tokens
        seen += len(texts)
    return seen


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("history", [False, True], ids=["alone", "history"])
@pytest.mark.parametrize("make", WORKFLOWS.values(), ids=WORKFLOWS)
@pytest.mark.cross_product(keep=26)
def test_the_second_time_all_documents_come_from_kept_state(
    make: Callable[..., RAGraph], history: bool, way: Callable[[Accelerator, RAGraph], Any]
) -> None:
    engine, graph = WatchedEngine(), make(history=history, max_tokens=6)
    with Accelerator(llm=engine, **searching()) as accelerator:
        first = way(accelerator, graph)
        start = len(engine.asked)
        assert way(accelerator, graph) == first
        assert check_answers(engine, start) > 0
    assert engine.held_bytes == 0


def test_these_are_all_workflows() -> None:
    made = {name.partition(",")[0] for name in WORKFLOWS}
    graphs = {name for name in workflows.__all__ if name.islower() and name != "ingest_into"}
    assert made == graphs


@pytest.mark.parametrize("kv_reuse", ["full", "fused"])
@pytest.mark.parametrize("passes", ["default", "all"])
@pytest.mark.parametrize("make", WORKFLOWS.values(), ids=WORKFLOWS)
@pytest.mark.cross_product(keep=13)
def test_answers_are_those_without_passes(
    make: Callable[..., RAGraph], passes: str, kv_reuse: str
) -> None:
    graph = make(max_tokens=6)
    plain, engine = (WatchedEngine(kv_reuse=kv_reuse) for _ in range(2))
    assert run_all(graph, engine, passes=passes) == run_all(graph, plain, passes="none")
