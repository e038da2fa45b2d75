"""Hold what the builders of programs share: the leaf, the state, how nodes are put in a line."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

from langgraph.config import get_stream_writer
from langgraph.graph import START, StateGraph
from places_leaves import CLASSES, Tally, aask, ask
from typing_extensions import TypedDict

QUESTION = "what is red?"

#: What a node returns: part of the state.
Update = dict[str, Any]


class State(TypedDict):
    """Hold what the nodes of the programs read and write."""

    question: str
    answer: str
    notes: Annotated[list[str], operator.add]


@dataclass(slots=True)
class Kit:
    """Give a builder its leaves, and take how the program wants to be called.

    Args:
        kind: which kind of leaf stands in the program.
        tally: counts the calls of all its leaves.
        is_async: whether its functions are coroutines.
        saver: the checkpointer, if the program is to have one.
        given: the input.
        configurable: what the caller puts into the config.
        resume: what the second call resumes with, if the first is interrupted.
    """

    kind: str
    tally: Tally
    is_async: bool = False
    saver: Any = None
    given: Any = field(default_factory=lambda: {"question": QUESTION})
    configurable: dict[str, Any] = field(default_factory=dict)
    resume: Any = None

    def leaf(self) -> Any:
        """Return a leaf of the kind, of a class made for it."""
        return self.leaf_class()()

    def leaf_class(self) -> type[Any]:
        """Return a class of leaves of the kind."""
        return CLASSES[self.kind](self.tally)

    def pick(self, sync: Any, coroutine: Any) -> Any:
        """Return whichever of the two the program is to be made of."""
        return coroutine if self.is_async else sync

    def answering(self, leaf: Any) -> Any:
        """Return a node whose function holds a leaf, or a runnable of one, and asks it."""

        def answer(state: State) -> Update:
            return {"answer": ask(leaf, state["question"])}

        async def aanswer(state: State) -> Update:
            return {"answer": await aask(leaf, state["question"])}

        return self.pick(answer, aanswer)

    def line(self, schema: Any = State, **nodes: Any) -> Any:
        """Return the compiled graph of nodes that run one after the other."""
        return self.compiled(self.builder(schema, **nodes))

    def builder(self, schema: Any = State, **nodes: Any) -> Any:
        """Return the graph of nodes that run one after the other, behind one that streams."""
        graph = StateGraph(schema)
        names = ["begin", *nodes]
        for name, node in {"begin": _begin, **nodes}.items():
            graph.add_node(name, node)
        for source, target in zip([START, *names], names, strict=False):
            graph.add_edge(source, target)
        return graph

    def compiled(self, graph: Any, **kwargs: Any) -> Any:
        """Return a graph compiled with the checkpointer, if there is one."""
        return graph.compile(checkpointer=self.saver, **kwargs)


@dataclass(frozen=True, slots=True)
class Program:
    """Name a place where a leaf can stand, and make programs with a leaf there.

    Args:
        build: makes a fresh program.
        kinds: the kinds of leaves that can stand there.
        is_ordered: whether two runs stream their items in the same order.
        saving: whether the program needs a checkpointer; any other has one where what is streamed
            needs it.
        error: the class of what its leaves raise.
        once: whether only the first call raises it.
    """

    build: Callable[[Kit], Any]
    kinds: tuple[str, ...] = ("chat", "embeddings", "retriever")
    is_ordered: bool = True
    saving: bool = False
    error: type[Exception] | None = None
    once: bool = False

    @property
    def name(self) -> str:
        return self.build.__name__


def _begin(state: Any) -> dict[str, Any]:
    get_stream_writer()({"begun": True})
    return {}
