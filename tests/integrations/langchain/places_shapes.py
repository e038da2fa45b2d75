"""Be programs whose leaf stands where the graph's shape puts it: edges, fan-outs, subgraphs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from langgraph.graph import END, START, StateGraph
from langgraph.types import Send
from places_kit import Kit, Program, State, Update
from places_leaves import aask, ask, digest
from typing_extensions import TypedDict


def conditional_edge(kit: Kit) -> Any:
    return _routed(kit, "begin", _router(kit))


def conditional_entry(kit: Kit) -> Any:
    return _routed(kit, START, _router(kit))


def _router(kit: Kit) -> Any:
    leaf = kit.leaf()

    def route(state: State) -> str:
        return _side(ask(leaf, state["question"]))

    async def aroute(state: State) -> str:
        return _side(await aask(leaf, state["question"]))

    return kit.pick(route, aroute)


def _routed(kit: Kit, source: str, path: Any) -> Any:
    graph = kit.builder() if source != START else StateGraph(State)
    for side in ("left", "right"):
        graph.add_node(side, lambda state, side=side: {"notes": [side]})
        graph.add_edge(side, END)
    graph.add_conditional_edges(source, path, {"left": "left", "right": "right"})
    return kit.compiled(graph)


def _side(text: str) -> Literal["left", "right"]:
    return "left" if int(digest(text), 16) % 2 else "right"


def _fan(state: State) -> list[Send]:
    return [Send("part", {"question": f"{state['question']} {number}"}) for number in range(3)]


def _noting(kit: Kit) -> Any:
    leaf = kit.leaf()

    def note(state: State) -> Update:
        return {"notes": [ask(leaf, state["question"])]}

    async def anote(state: State) -> Update:
        return {"notes": [await aask(leaf, state["question"])]}

    return kit.pick(note, anote)


def send(kit: Kit) -> Any:
    graph = kit.builder()
    graph.add_node("part", _noting(kit))
    graph.add_conditional_edges("begin", _fan, ["part"])
    return kit.compiled(graph)


def map_reduce(kit: Kit) -> Any:
    leaf = kit.leaf()

    def reduce(state: State) -> Update:
        return {"answer": ask(leaf, " ".join(state["notes"]))}

    async def areduce(state: State) -> Update:
        return {"answer": await aask(leaf, " ".join(state["notes"]))}

    graph = kit.builder()
    graph.add_node("part", _noting(kit))
    graph.add_node("reduce", kit.pick(reduce, areduce), defer=True)
    graph.add_conditional_edges("begin", _fan, ["part"])
    graph.add_edge("part", "reduce")
    return kit.compiled(graph)


def reducer(kit: Kit) -> Any:
    """Let a channel's reducer call the leaf, which no node's code does."""
    leaf = kit.leaf()

    def merged(old: str, new: str) -> str:
        return ask(leaf, new) if new else old

    class Merging(TypedDict):
        question: str
        answer: str

    # Postponed annotations cannot name what is local, and the reducer's leaf is.
    Merging.__annotations__["answer"] = Annotated[str, merged]
    return kit.line(Merging, answer=lambda state: {"answer": state["question"]})


def subgraph_node(kit: Kit) -> Any:
    return kit.line(inner=_inner(kit))


def subgraph_called(kit: Kit) -> Any:
    inner = _inner(kit)

    def answer(state: State) -> Update:
        return {"answer": inner.invoke({"question": state["question"]})["answer"]}

    async def aanswer(state: State) -> Update:
        return {"answer": (await inner.ainvoke({"question": state["question"]}))["answer"]}

    return kit.line(answer=kit.pick(answer, aanswer))


def _inner(kit: Kit) -> Any:
    graph = StateGraph(State)
    graph.add_node("deep", kit.answering(kit.leaf()))
    graph.add_edge(START, "deep")
    return graph.compile()


PROGRAMS = (
    Program(conditional_edge),
    Program(conditional_entry),
    Program(send, is_ordered=False),
    Program(map_reduce, is_ordered=False),
    Program(reducer),
    Program(subgraph_node),
    Program(subgraph_called),
)
