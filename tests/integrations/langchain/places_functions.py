"""Be programs whose leaf stands in a function that is a node, or in what that function reaches."""

from __future__ import annotations

import functools
import types
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

from langchain_core.runnables import RunnableLambda
from places_kit import Kit, Program, State, Update
from places_leaves import CLASSES, aask, ask

_leaf: Any = None
_holder: ContextVar[Any] = ContextVar("places_leaf")
_settings = types.ModuleType("places_settings")


def closure(kit: Kit) -> Any:
    leaf = kit.leaf()

    def answer(state: State) -> Update:
        return {"answer": ask(leaf, state["question"])}

    async def aanswer(state: State) -> Update:
        return {"answer": await aask(leaf, state["question"])}

    return kit.line(answer=kit.pick(answer, aanswer))


def _answer_globally(state: State) -> Update:
    return {"answer": ask(_leaf, state["question"])}


async def _aanswer_globally(state: State) -> Update:
    return {"answer": await aask(_leaf, state["question"])}


def global_name(kit: Kit) -> Any:
    global _leaf
    _leaf = kit.leaf()
    return kit.line(answer=kit.pick(_answer_globally, _aanswer_globally))


def module_attribute(kit: Kit) -> Any:
    _settings.leaf = kit.leaf()  # type: ignore[attr-defined]

    def answer(state: State) -> Update:
        return {"answer": ask(_settings.leaf, state["question"])}

    async def aanswer(state: State) -> Update:
        return {"answer": await aask(_settings.leaf, state["question"])}

    return kit.line(answer=kit.pick(answer, aanswer))


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


class _Callable(_Answering):
    def __call__(self, state: State) -> Update:
        return self.answer(state)


class _AsyncCallable(_Answering):
    async def __call__(self, state: State) -> Update:
        return await self.aanswer(state)


def callable_object(kit: Kit) -> Any:
    return kit.line(answer=kit.pick(_Callable, _AsyncCallable)(kit.leaf()))


class _Slotted:
    __slots__ = ("leaf",)

    def __init__(self, leaf: Any) -> None:
        self.leaf = leaf


def slotted_object(kit: Kit) -> Any:
    held = _Slotted(kit.leaf())

    def answer(state: State) -> Update:
        return {"answer": ask(held.leaf, state["question"])}

    async def aanswer(state: State) -> Update:
        return {"answer": await aask(held.leaf, state["question"])}

    return kit.line(answer=kit.pick(answer, aanswer))


def class_attribute(kit: Kit) -> Any:
    class Settings:
        leaf = kit.leaf()

    def answer(state: State) -> Update:
        return {"answer": ask(Settings.leaf, state["question"])}

    async def aanswer(state: State) -> Update:
        return {"answer": await aask(Settings.leaf, state["question"])}

    return kit.line(answer=kit.pick(answer, aanswer))


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


def keyword_default(kit: Kit) -> Any:
    def answer(state: State, *, leaf: Any = kit.leaf()) -> Update:  # noqa: B008
        return {"answer": ask(leaf, state["question"])}

    async def aanswer(state: State, *, leaf: Any = kit.leaf()) -> Update:  # noqa: B008
        return {"answer": await aask(leaf, state["question"])}

    return kit.line(answer=kit.pick(answer, aanswer))


def decorated_function(kit: Kit) -> Any:
    leaf = kit.leaf()

    def answering(function: Callable[[State, str], Update]) -> Callable[[State], Update]:
        @functools.wraps(function)
        def wrapper(state: State) -> Update:
            return function(state, ask(leaf, state["question"]))

        return wrapper

    def aanswering(
        function: Callable[[State, str], Update],
    ) -> Callable[[State], Awaitable[Update]]:
        @functools.wraps(function)
        async def wrapper(state: State) -> Update:
            return function(state, await aask(leaf, state["question"]))

        return wrapper

    def answer(state: State, text: str) -> Update:
        return {"answer": text}

    return kit.line(answer=kit.pick(answering, aanswering)(answer))


def helper_function(kit: Kit) -> Any:
    leaf = kit.leaf()

    def helper(text: str) -> str:
        return ask(leaf, text)

    async def ahelper(text: str) -> str:
        return await aask(leaf, text)

    def answer(state: State) -> Update:
        return {"answer": helper(state["question"])}

    async def aanswer(state: State) -> Update:
        return {"answer": await ahelper(state["question"])}

    return kit.line(answer=kit.pick(answer, aanswer))


def nested_dict(kit: Kit) -> Any:
    held = {"models": {"main": {"leaf": [kit.leaf()]}}}

    def answer(state: State) -> Update:
        return {"answer": ask(held["models"]["main"]["leaf"][0], state["question"])}

    async def aanswer(state: State) -> Update:
        return {"answer": await aask(held["models"]["main"]["leaf"][0], state["question"])}

    return kit.line(answer=kit.pick(answer, aanswer))


def context_variable(kit: Kit) -> Any:
    _holder.set(kit.leaf())

    def answer(state: State) -> Update:
        return {"answer": ask(_holder.get(), state["question"])}

    async def aanswer(state: State) -> Update:
        return {"answer": await aask(_holder.get(), state["question"])}

    return kit.line(answer=kit.pick(answer, aanswer))


def cached_factory(kit: Kit) -> Any:
    @functools.cache
    def leaf() -> Any:
        return kit.leaf()

    def answer(state: State) -> Update:
        return {"answer": ask(leaf(), state["question"])}

    async def aanswer(state: State) -> Update:
        return {"answer": await aask(leaf(), state["question"])}

    return kit.line(answer=kit.pick(answer, aanswer))


def object_made_in_node(kit: Kit) -> Any:
    cls = kit.leaf_class()

    def answer(state: State) -> Update:
        return {"answer": ask(cls(), state["question"])}

    async def aanswer(state: State) -> Update:
        return {"answer": await aask(cls(), state["question"])}

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


def lambda_of_partial(kit: Kit) -> Any:
    function = kit.pick(_answer_with, _aanswer_with)
    return kit.line(answer=RunnableLambda(functools.partial(function, kit.leaf())))


EVERY_KIND = tuple(CLASSES)

PROGRAMS = (
    Program(closure, EVERY_KIND),
    Program(global_name),
    Program(module_attribute),
    Program(bound_method),
    Program(callable_object),
    Program(slotted_object),
    Program(class_attribute),
    Program(partial, EVERY_KIND),
    Program(default_argument),
    Program(keyword_default),
    Program(decorated_function),
    Program(helper_function),
    Program(nested_dict),
    Program(context_variable),
    Program(cached_factory),
    Program(object_made_in_node),
    Program(class_made_in_node, EVERY_KIND),
    Program(runnable_lambda),
    Program(lambda_of_partial),
)
