"""Write the workflow as LangGraph programs: one stage after another, and parallel by hand."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Annotated, Any

from langgraph.graph import END, START, StateGraph
from langgraph.types import Send
from typing_extensions import TypedDict

from bench.research.advanced.stages import NamedNode, Stages, passages, queries_of
from bench.research.advanced.workload import TOP_N, Variant
from rag_accel.engine_api import Document

Update = dict[str, Any]
"""What a node writes."""


class State(TypedDict):
    """The values of a request.

    Lists that parallel nodes add to hold ``(place, item)``: the order of arrival must not matter.
    """

    input: str
    documents: Sequence[Document]
    queries: list[str]
    query: tuple[int, str]
    hits: Annotated[list[tuple[int, list[Document]]], operator.add]
    docs: list[Document]
    passage: tuple[int, Document]
    partials: Annotated[list[tuple[int, str]], operator.add]
    answer: str


def sequential(stages: Stages, variant: Variant) -> Any:
    """Return the program that does one thing at a time; ``invoke`` it with a State."""
    upload: list[NamedNode] = [("upload", _upload(stages))] if variant.upload else []
    nodes: list[NamedNode] = [
        *upload,
        ("expand", lambda state: _queries(stages.generate("expand", input=state["input"]))),
        (
            "search",
            lambda state: {"hits": [(0, stages.search(query)) for query in state["queries"]]},
        ),
        ("rerank", _rerank(stages)),
        *_SEQUENTIAL[variant.mode](stages),
    ]
    graph = StateGraph(State)
    for before, (name, work) in zip([START, *(name for name, _ in nodes)], nodes, strict=False):
        graph.add_node(name, work)
        graph.add_edge(before, name)
    return graph.add_edge(nodes[-1][0], END).compile()


def hand_parallel(stages: Stages, variant: Variant) -> Any:
    """Return the program that a careful user writes; ``ainvoke`` it with a State.

    The upload runs beside the expansion; each query is searched in a branch of its own (``Send``),
    and so is each leaf of a tree answered. What computes runs in threads, what generates on the
    loop.
    """
    graph = StateGraph(State)
    begun = ["expand"]

    async def expand(state: State) -> Update:
        return _queries(await stages.agenerate("expand", input=state["input"]))

    graph.add_node("expand", expand)
    graph.add_edge(START, "expand")
    if variant.upload:
        graph.add_node("upload", _upload(stages))
        graph.add_edge(START, "upload")
        begun.append("upload")
    graph.add_node("spread", lambda state: {})
    graph.add_edge(begun, "spread")
    graph.add_conditional_edges("spread", _searches, ["search"])

    def search(state: State) -> Update:
        place, query = state["query"]
        return {"hits": [(place, stages.search(query))]}

    graph.add_node("search", search)
    graph.add_node("rerank", _rerank(stages))
    graph.add_edge("search", "rerank")
    if variant.mode == "tree":
        _add_parallel_tree(graph, stages)
        return graph.compile()
    _add_chain(graph, stages, variant)
    return graph.compile()


# Nodes of both -------------------------------------------------------------------------------


def _upload(stages: Stages) -> Any:
    def upload(state: State) -> Update:
        stages.upload(state["documents"])
        return {}

    return upload


def _rerank(stages: Stages) -> Any:
    def rerank(state: State) -> Update:
        found = [hits for _, hits in sorted(state["hits"], key=operator.itemgetter(0))]
        return {"docs": stages.rerank(state["input"], found)}

    return rerank


def _queries(expansion: str) -> Update:
    return {"queries": queries_of(expansion)}


def _searches(state: State) -> list[Send]:
    return [Send("search", {"query": one}) for one in enumerate(state["queries"])]


def _stuff_values(state: State) -> dict[str, str]:
    return {"docs": passages(state["docs"]), "input": state["input"]}


def _passage_values(state: State, passage: Document) -> dict[str, str]:
    return {"passage": passages([passage]), "input": state["input"]}


def _combine_values(state: State) -> dict[str, str]:
    partials = [text for _, text in sorted(state["partials"], key=operator.itemgetter(0))]
    return {"partials": "\n\n".join(partials), "input": state["input"]}


def _refine_values(state: State, place: int) -> dict[str, str]:
    return {**_passage_values(state, state["docs"][place]), "answer": state["answer"]}


# One thing at a time -------------------------------------------------------------------------


def _sequential_stuff(stages: Stages) -> list[NamedNode]:
    return [("stuff", lambda state: {"answer": stages.generate("stuff", **_stuff_values(state))})]


def _sequential_tree(stages: Stages) -> list[NamedNode]:
    def leaves(state: State) -> Update:
        found = [
            (place, stages.generate("passage", **_passage_values(state, one)))
            for place, one in enumerate(state["docs"])
        ]
        return {"partials": found}

    def combine(state: State) -> Update:
        return {"answer": stages.generate("combine", **_combine_values(state))}

    return [("leaves", leaves), ("combine", combine)]


def _sequential_refine(stages: Stages) -> list[NamedNode]:
    def draft(state: State) -> Update:
        return {"answer": stages.generate("passage", **_passage_values(state, state["docs"][0]))}

    def refine(place: int) -> Any:
        return lambda state: {
            "answer": stages.generate("refine", **_refine_values(state, place)),
        }

    return [("draft", draft), *((f"refine{place}", refine(place)) for place in range(1, TOP_N))]


_SEQUENTIAL = {
    "stuff": _sequential_stuff,
    "tree": _sequential_tree,
    "refine": _sequential_refine,
}


# Parallel by hand ----------------------------------------------------------------------------


def _add_parallel_tree(graph: Any, stages: Stages) -> None:
    async def leaf(state: State) -> Update:
        place, passage = state["passage"]
        text = await stages.agenerate("passage", **_passage_values(state, passage))
        return {"partials": [(place, text)]}

    async def combine(state: State) -> Update:
        return {"answer": await stages.agenerate("combine", **_combine_values(state))}

    def leaves(state: State) -> list[Send]:
        return [
            Send("leaf", {"passage": one, "input": state["input"]})
            for one in enumerate(state["docs"])
        ]

    graph.add_node("leaf", leaf)
    graph.add_node("combine", combine)
    graph.add_conditional_edges("rerank", leaves, ["leaf"])
    graph.add_edge("leaf", "combine")
    graph.add_edge("combine", END)


def _add_chain(graph: Any, stages: Stages, variant: Variant) -> None:
    async def stuff(state: State) -> Update:
        return {"answer": await stages.agenerate("stuff", **_stuff_values(state))}

    async def draft(state: State) -> Update:
        values = _passage_values(state, state["docs"][0])
        return {"answer": await stages.agenerate("passage", **values)}

    def refine(place: int) -> Any:
        async def better(state: State) -> Update:
            return {"answer": await stages.agenerate("refine", **_refine_values(state, place))}

        return better

    chain: list[NamedNode] = [("stuff", stuff)]
    if variant.mode == "refine":
        refines = ((f"refine{place}", refine(place)) for place in range(1, TOP_N))
        chain = [("draft", draft), *refines]
    before = "rerank"
    for name, work in chain:
        graph.add_node(name, work)
        graph.add_edge(before, name)
        before = name
    graph.add_edge(before, END)
