"""Of one LangGraph run, leaves that most still depends on go first, once its skeleton is known."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("langgraph")

from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from langchain_rag_accel import accelerate
from rag_accel import Accelerator
from rag_accel.accelerator import Work
from rag_accel.engine_api import PrimitiveKind, TextBatch
from rag_accel.interception.identity import find_identity
from rag_accel.testing import FAKE_PROFILE, FakeEngine, compute

PATIENCE_S = 20.0
WIDE = [f"wide {number}" for number in range(6)]


class State(TypedDict, total=False):
    question: str


class Program:
    """Embed six texts in one node, beside a subgraph of two steps whose first comes last."""

    def __init__(self, embed: Callable[[str], Any]) -> None:
        self._embed = embed
        self._arrived = asyncio.Event()
        self.first_waits = asyncio.Event()

    async def wide(self, state: State) -> dict[str, Any]:
        tasks = [asyncio.ensure_future(self._embed(text)) for text in WIDE]
        await asyncio.sleep(0)
        self._arrived.set()
        await asyncio.gather(*tasks)
        return {}

    async def first(self, state: State) -> dict[str, Any]:
        await self._arrived.wait()
        task = asyncio.ensure_future(self._embed("first"))
        await asyncio.sleep(0)
        self.first_waits.set()
        await task
        return {}

    async def second(self, state: State) -> dict[str, Any]:
        await self._embed("second")
        return {}

    def compiled(self) -> Any:
        inner = StateGraph(State)
        inner.add_node("first", self.first)
        inner.add_node("second", self.second)
        inner.add_edge(START, "first")
        inner.add_edge("first", "second")
        graph = StateGraph(State)
        graph.add_node("wide", self.wide)
        graph.add_node("line", inner.compile())
        graph.add_edge(START, "wide")
        graph.add_edge(START, "line")
        return graph.compile()


async def order_of(accelerator: Accelerator) -> list[str]:
    """Return the texts of one run in the order in which the engine got them, one at a time."""
    may_compute = threading.Event()

    def wait_and_compute(payload: Any) -> Any:
        assert may_compute.wait(PATIENCE_S), "nobody let the engine go on"
        return compute(payload)

    engine = FakeEngine(replace(FAKE_PROFILE, max_batch=1), compute=wait_and_compute)
    name = accelerator.own(object(), "embedding", lambda: engine)

    async def embed(text: str) -> Any:
        identity = find_identity()
        assert identity is not None
        work = Work(name, PrimitiveKind.EMBEDDING, TextBatch((text,)))
        return await accelerator.leaves.acompute(identity, work)

    program = Program(embed)
    graph = accelerate(program.compiled(), accelerator=accelerator)
    running = asyncio.ensure_future(graph.ainvoke({"question": "x"}))
    await asyncio.wait_for(program.first_waits.wait(), PATIENCE_S)
    for _ in range(3):  # what a turn of the loop brings goes to the scheduler together
        await asyncio.sleep(0)
    accelerator._driver.ask(lambda: None)  # pyright: ignore[reportPrivateUsage]
    may_compute.set()
    await running
    return [request.payload.texts[0] for batch in engine.served for request in batch]


async def test_with_the_skeleton_the_longest_remaining_path_goes_first() -> None:
    with Accelerator(strict=True) as accelerator:
        found = await order_of(accelerator)
    assert found.index("first") <= 1, "only what was running already may be before it"
    assert [text for text in found if text in WIDE] == WIDE


async def test_without_it_leaves_go_in_the_order_in_which_they_came() -> None:
    with Accelerator(strict=True, use_skeleton=False) as accelerator:
        found = await order_of(accelerator)
    assert found[: len(WIDE) + 1] == [*WIDE, "first"]
