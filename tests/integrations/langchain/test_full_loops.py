"""LangGraph nodes that block their loop with sync calls end also where more run than may live."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from langchain_rag_accel import accelerate, activate
from rag_accel import Accelerator

PATIENCE_S = 60.0
MODEL = FakeListChatModel(responses=["an answer"])


class State(TypedDict, total=False):
    """What the graph works on."""

    said: str


async def node(state: State) -> State:
    """Ask twice, each time without awaiting, and let others run in between."""
    first = MODEL.invoke("how?").content
    await asyncio.sleep(0)
    return {"said": f"{first}, {MODEL.invoke('why?').content}"}


def graph() -> Any:
    made = StateGraph(State)
    made.add_node("node", node)
    made.add_edge(START, "node")
    made.add_edge("node", END)
    return made.compile()


async def ask_all(program: Any) -> list[Any]:
    return await asyncio.gather(*(program.ainvoke({}) for _ in range(40)))


@pytest.mark.parametrize("how", ["accelerated", "activated"])
def test_forty_users_whose_nodes_block_their_loop_are_all_answered(how: str) -> None:
    found: list[Any] = []

    def run(accelerator: Accelerator) -> None:
        if how == "accelerated":
            program = accelerate(graph(), accelerator=accelerator)
            found.extend(asyncio.run(ask_all(program)))
        else:
            with activate(accelerator):
                found.extend(asyncio.run(ask_all(graph())))

    with Accelerator(strict=True, max_requests=4) as accelerator:
        running = threading.Thread(target=run, args=(accelerator,), daemon=True)
        running.start()
        running.join(PATIENCE_S)
        assert found == [{"said": "an answer, an answer"}] * 40
