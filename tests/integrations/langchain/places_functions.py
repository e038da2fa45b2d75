"""Be programs whose leaf stands in a function that is a node, or in what that function reaches."""

from __future__ import annotations

import functools
from typing import Any

from langchain_core.runnables import RunnableLambda
from places_kit import Kit, Program, State, Update
from places_leaves import CLASSES, aask, ask

_leaf: Any = None


def closure(kit: Kit) -> Any:
    return kit.line(answer=kit.answering(kit.leaf()))


def _answer_globally(state: State) -> Update:
    return {"answer": ask(_leaf, state["question"])}


async def _aanswer_globally(state: State) -> Update:
    return {"answer": await aask(_leaf, state["question"])}


def global_name(kit: Kit) -> Any:
    global _leaf
    _leaf = kit.leaf()
    return kit.line(answer=kit.pick(_answer_globally, _aanswer_globally))


class _Answering:
    def __init__(self, leaf: Any) -> None:
        self.leaf = leaf

    def answer(self, state: State) -> Update:
        return {"answer": ask(self.leaf, state["question"])}

    async def aanswer(self, state: State) -> Update:
        return {"answer": await aask(self.leaf, state["question"])}


def bound_method(kit: Kit) -> Any:
    owner = _Answering(kit.leaf())
    return kit.line(answer=kit.pick(owner.answer, owner.aanswer))


def _answer_with(leaf: Any, state: State) -> Update:
    return {"answer": ask(leaf, state["question"])}


async def _aanswer_with(leaf: Any, state: State) -> Update:
    return {"answer": await aask(leaf, state["question"])}


def partial(kit: Kit) -> Any:
    function = kit.pick(_answer_with, _aanswer_with)
    return kit.line(answer=functools.partial(function, kit.leaf()))


def default_argument(kit: Kit) -> Any:
    def answer(state: State, leaf: Any = kit.leaf()) -> Update:  # noqa: B008
        return {"answer": ask(leaf, state["question"])}

    async def aanswer(state: State, leaf: Any = kit.leaf()) -> Update:  # noqa: B008
        return {"answer": await aask(leaf, state["question"])}

    return kit.line(answer=kit.pick(answer, aanswer))


def class_made_in_node(kit: Kit) -> Any:
    kind, tally = kit.kind, kit.tally

    def answer(state: State) -> Update:
        return {"answer": ask(CLASSES[kind](tally)(), state["question"])}

    async def aanswer(state: State) -> Update:
        return {"answer": await aask(CLASSES[kind](tally)(), state["question"])}

    return kit.line(answer=kit.pick(answer, aanswer))


def runnable_lambda(kit: Kit) -> Any:
    leaf = kit.leaf()

    def answer(state: State) -> Update:
        return {"answer": ask(leaf, state["question"])}

    async def aanswer(state: State) -> Update:
        return {"answer": await aask(leaf, state["question"])}

    return kit.line(answer=RunnableLambda(answer, aanswer))


EVERY_KIND = tuple(CLASSES)

PROGRAMS = (
    Program(closure, EVERY_KIND),
    Program(global_name),
    Program(bound_method),
    Program(partial, EVERY_KIND),
    Program(default_argument),
    Program(class_made_in_node, EVERY_KIND),
    Program(runnable_lambda),
)
