"""An accelerated compiled graph is a compiled graph, and does what the plain one does."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, Send, interrupt
from typing_extensions import TypedDict

from langchain_rag_accel import accelerate, activate
from langchain_rag_accel.coverage import Coverage, coverage
from rag_accel import Accelerator


def _joined(old: list[str], new: list[str]) -> list[str]:
    return old + new


class State(TypedDict, total=False):
    said: Annotated[list[str], _joined]


MODEL = FakeListChatModel(responses=["one answer"])


def answer(state: State) -> State:
    return {"said": [MODEL.invoke("how?").content]}


def asks(state: State) -> State:
    return {"said": [interrupt("well?")]}


def inner(**how: Any) -> Any:
    """Return a graph of two nodes, of which the second waits."""
    graph = StateGraph(State)
    graph.add_node("answer", answer)
    graph.add_node("asks", asks)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", "asks")
    return graph.compile(**how)


def spread(state: State) -> list[Send]:
    """Answer three times side by side."""
    return [Send("answer", state) for _ in range(3)]


def outer(part: Any, **how: Any) -> Any:
    graph = StateGraph(State)
    graph.add_node("first", answer)
    graph.add_node("part", part)
    graph.add_node("answer", answer)
    graph.add_node("last", lambda state: Command(update={"said": ["end"]}, goto=END))
    graph.add_edge(START, "first")
    graph.add_conditional_edges("first", spread, ["answer"])
    graph.add_edge("answer", "part")
    graph.add_edge("part", "last")
    return graph.compile(**how)


def both(accelerator: Accelerator) -> tuple[Any, Any]:
    """Return the same program plain and accelerated, in and out."""
    plain = outer(inner(), checkpointer=InMemorySaver(), name="program")
    part = accelerate(inner(), accelerator=accelerator)
    fast = outer(part, checkpointer=InMemorySaver(), name="program")
    return plain, accelerate(fast, accelerator=accelerator)


def thread(name: str = "1") -> dict[str, Any]:
    return {"configurable": {"thread_id": name}}


def test_it_is_a_compiled_graph_of_the_same_kind(accelerator: Accelerator) -> None:
    plain, fast = both(accelerator)
    assert isinstance(fast, Pregel)
    assert isinstance(fast, CompiledStateGraph)
    assert type(fast).__name__ == "CompiledStateGraph"
    assert fast.get_name() == plain.get_name() == "program"
    assert fast.get_input_jsonschema() == plain.get_input_jsonschema()
    assert fast.get_output_jsonschema() == plain.get_output_jsonschema()
    assert fast.get_context_jsonschema() == plain.get_context_jsonschema()
    assert fast.builder.nodes.keys() == plain.builder.nodes.keys()


@pytest.mark.parametrize("xray", [False, True, 1])
def test_it_is_drawn_alike(accelerator: Accelerator, xray: bool | int) -> None:
    plain, fast = both(accelerator)
    drawn = plain.get_graph(xray=xray)
    assert fast.get_graph(xray=xray).draw_mermaid() == drawn.draw_mermaid()
    assert fast.get_graph(xray=xray).to_json() == drawn.to_json()


def values(snapshot: Any) -> Any:
    """Return what a snapshot says, without what is new in every run."""
    tasks = [
        (one.name, [item.value for item in one.interrupts], _within(one.state))
        for one in snapshot.tasks
    ]
    return snapshot.values, snapshot.next, tasks, snapshot.metadata["step"]


def _within(state: Any) -> Any:
    """Return what a task says of its subgraph: its state, or where that is kept."""
    return sorted(state["configurable"]) if isinstance(state, dict) else state and values(state)


def test_states_of_subgraphs_are_seen_and_runs_resume(accelerator: Accelerator) -> None:
    seen = []
    for graph in both(accelerator):
        stopped = graph.invoke({"said": []}, thread())
        within = graph.get_state(thread(), subgraphs=True)
        ended = graph.invoke(Command(resume="yes"), thread())
        history = [values(one) for one in graph.get_state_history(thread())]
        interrupts = [one.value for one in stopped.pop("__interrupt__")]
        seen.append((stopped, interrupts, values(within), ended, history))
    assert seen[0] == seen[1]


async def test_states_are_seen_from_coroutines_too(accelerator: Accelerator) -> None:
    seen = []
    for graph in both(accelerator):
        await graph.ainvoke({"said": []}, thread())
        within = await graph.aget_state(thread(), subgraphs=True)
        await graph.aupdate_state(thread(), {"said": ["edited"]})
        ended = await graph.ainvoke(Command(resume="yes"), thread())
        history = [values(one) async for one in graph.aget_state_history(thread())]
        seen.append((values(within), ended["said"], history))
    assert seen[0] == seen[1]


@pytest.fixture
def opened(accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give the names of the requests that were opened."""
    names, plain = list[str](), accelerator.open_request

    def open_request(name: str, *args: Any, **kwargs: Any) -> Any:
        names.append(name)
        return plain(name, *args, **kwargs)

    monkeypatch.setattr(accelerator, "open_request", open_request)
    return names


def scheduled(meter: Coverage) -> dict[str, int]:
    """Return how many calls of each kind were scheduled; none passed the scheduler by."""
    assert meter.passed_by == 0, str(meter)
    return {row.kind: row.scheduled for row in meter.rows()}


def test_a_call_is_one_request_and_its_leaves_are_scheduled(
    accelerator: Accelerator, opened: list[str]
) -> None:
    _, fast = both(accelerator)
    with coverage() as meter:
        fast.invoke({"said": []}, thread())
    assert scheduled(meter) == {"chat model": 5}
    assert len(opened) == 1


async def test_a_batch_is_one_request(accelerator: Accelerator, opened: list[str]) -> None:
    fast = accelerate(outer(RunnableLambda(answer)), accelerator=accelerator)
    plain = outer(RunnableLambda(answer))
    assert fast.batch([{"said": []}] * 3) == plain.batch([{"said": []}] * 3)
    assert await fast.abatch([{"said": []}] * 3) == plain.batch([{"said": []}] * 3)
    assert len(opened) == 2


def test_attributes_can_be_set_on_either(accelerator: Accelerator) -> None:
    plain = inner()
    fast = accelerate(plain, accelerator=accelerator)
    fast.checkpointer, plain.store = InMemorySaver(), InMemoryStore()
    assert plain.checkpointer is fast.checkpointer
    assert fast.store is plain.store
    fast.invoke({"said": []}, thread())
    assert plain.get_state(thread()).next == ("asks",)


@pytest.mark.parametrize(
    "again",
    [
        copy.copy,
        lambda graph: graph.copy(),
        lambda graph: graph.copy({"name": "other"}),
        lambda graph: graph.with_config(tags=["x"]),
    ],
)
def test_what_is_made_of_it_is_accelerated(
    again: Callable[[Any], Any], accelerator: Accelerator, opened: list[str]
) -> None:
    graph = again(accelerate(inner(checkpointer=InMemorySaver()), accelerator=accelerator))
    assert isinstance(graph, CompiledStateGraph)
    graph.invoke({"said": []}, thread())
    assert len(opened) == 1


@pytest.mark.parametrize("again", [copy.deepcopy, lambda graph: pickle.loads(pickle.dumps(graph))])
def test_it_is_copied_and_pickled_as_far_as_the_plain_one(again: Callable[[Any], Any]) -> None:
    def outcome(graph: Any) -> Any:
        try:
            return type(again(graph)).__name__
        except Exception as error:
            return type(error)

    assert outcome(accelerate(inner())) == outcome(inner())


def test_a_graph_is_accelerated_once(accelerator: Accelerator, opened: list[str]) -> None:
    fast = accelerate(inner(checkpointer=InMemorySaver()), accelerator=accelerator)
    assert accelerate(fast) is fast
    assert accelerate(fast, accelerator=accelerator) is fast
    with Accelerator(strict=True) as other, coverage() as meter:
        moved = accelerate(fast, accelerator=other)
        moved.invoke({"said": []}, thread())
        assert opened == []
    assert scheduled(meter) == {"chat model": 1}
    with activate(accelerator):
        fast.invoke({"said": []}, thread("2"))
    assert len(opened) == 1
