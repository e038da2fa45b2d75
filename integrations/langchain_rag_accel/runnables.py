"""Runnables and compiled graphs whose runs are requests, with LangChain or LangGraph in control.

All entries of a compiled graph run by two methods, ``stream`` and ``astream``; these are what a
request is put around.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing
from itertools import islice
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    HumanMessageChunk,
    SystemMessage,
    SystemMessageChunk,
)
from langchain_core.runnables import Runnable, RunnableBinding, RunnableConfig
from langchain_core.runnables.graph import Graph
from langchain_core.tools import BaseTool
from pydantic import PrivateAttr

from langchain_rag_accel.leaf_table import EXPLANATION
from rag_accel.accelerator import Accelerator, current_request, default_accelerator
from rag_accel.engine_api import Message, Role
from rag_accel.interception.identity import activated, scoped
from rag_accel.interception.program import AcceleratedProgram
from rag_accel.interception.twins import is_twin, twin
from rag_accel.interception.wrappers import astepped, stepped
from rag_accel.leaves.recorded_prompts import MOST_VALUES, Values
from rag_accel_adapters.langchain.langgraph_edges import called_without_context, skeleton

_ROLES: Mapping[type[BaseMessage], Role] = {
    SystemMessage: "system",
    HumanMessage: "user",
    AIMessage: "assistant",
    SystemMessageChunk: "system",
    HumanMessageChunk: "user",
    AIMessageChunk: "assistant",
}


def values_of(given: Any) -> Values:
    """Return texts, and messages of text, by their key; that of what stands alone is empty.

    No code of the program's runs: what is of a class of its own is left out.
    """
    named = given if type(given) is dict else {"": given}
    found: dict[str, str | tuple[Message, ...]] = {}
    for name, value in islice(named.items(), MOST_VALUES):
        known = value if type(value) is str else _turns(value)
        if type(name) is str and known is not None:
            found[name] = known
    return found


def _turns(value: Any) -> tuple[Message, ...] | None:
    """Return messages as engines take them; None where one of them is anything else."""
    told: Sequence[Any] = value if type(value) in (list, tuple) else (value,)
    turns: list[Message] = []
    for message in told:
        role = _ROLES.get(type(message))
        if role is None or type(message.content) is not str:
            return None
        turns.append(Message(role, message.content))
    return tuple(turns)


T = TypeVar("T")

_logger = logging.getLogger(__name__)


class Program(AcceleratedProgram):
    """A runnable as a program.

    Args:
        runnable: the program.
        own: the accelerator it was given, if any.
    """

    def __init__(self, runnable: Runnable[Any, Any], own: Accelerator | None) -> None:
        lent_ids = _of_graph(called_without_context, runnable) or frozenset[int]()
        plan = _of_graph(skeleton, runnable)
        super().__init__(runnable.get_name(), own, plan and plan.here, lent_ids)


def _of_graph(look: Callable[[Any], T], runnable: Runnable[Any, Any]) -> T | None:
    """Return what is seen in a program; None where looking, which runs the owner's code, fails."""
    try:
        return look(runnable)
    except Exception as error:
        # Text only: a kept record would keep the error, its frames and so the program alive.
        _logger.warning("the plan of %s is unknown: %s", runnable.get_name(), repr(error))
        return None


#: of each accelerated graph; one made of another has that one's
_programs: WeakKeyDictionary[Any, Program] = WeakKeyDictionary()


def accelerate_graph(graph: Any, accelerator: Accelerator | None) -> Any:
    """Return a compiled graph of the same class and state, whose runs are scheduled."""
    made = twin(graph, accelerator, graph_methods)
    if is_twin(made):
        _program_of(made, accelerator)
    return made


def _program_of(graph: Any, own: Accelerator | None) -> Program:
    found = _programs.get(graph)
    return found if found is not None else _programs.setdefault(graph, Program(graph, own))


def graph_program(graph: Any) -> Program | None:
    """Return the program of an accelerated graph, None for another object."""
    return next((made for one, made in list(_programs.items()) if one is graph), None)


def graph_methods(cls: type, own: Accelerator | None) -> dict[str, Any]:
    """Return the methods in which an accelerated graph differs from a graph of class ``cls``."""
    plain: Any = cls  # a compiled graph's class

    def given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Values:
        return values_of(args[0] if args else kwargs.get("input"))

    @functools.wraps(plain.stream)
    def stream(self: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        with _program_of(self, own).run(functools.partial(given, args, kwargs)) as scope:
            yield from stepped(iter(plain.stream(self, *args, **kwargs)), scope)

    @functools.wraps(plain.astream)
    async def astream(self: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        with _program_of(self, own).run(functools.partial(given, args, kwargs)) as scope:
            chunks = aiter(plain.astream(self, *args, **kwargs))
            async with aclosing(astepped(chunks, scope)) as items:
                async for item in items:
                    yield item

    @functools.wraps(plain.batch)
    def batch(self: Any, *args: Any, **kwargs: Any) -> list[Any]:
        with _program_of(self, own).call(is_batch=True):
            return plain.batch(self, *args, **kwargs)

    @functools.wraps(plain.abatch)
    async def abatch(self: Any, *args: Any, **kwargs: Any) -> list[Any]:
        with _program_of(self, own).call(is_batch=True):
            return await plain.abatch(self, *args, **kwargs)

    @functools.wraps(plain.copy)
    def copy(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = plain.copy(self, *args, **kwargs)
        if made.nodes is self.nodes:  # the same program, under another config perhaps
            _programs[made] = _program_of(self, own)
        return made

    return {"stream": stream, "astream": astream, "batch": batch, "abatch": abatch, "copy": copy}


class AcceleratedRunnable(RunnableBinding[Any, Any]):
    """The bound runnable, with its models, retrievers and embeddings scheduled.

    Every call becomes one request; all inputs of a batch are one. Its identity travels in the
    context of whatever runs for the call.
    """

    _accelerator: Accelerator | None = PrivateAttr(default=None)
    #: shared by all bindings made of this one
    _program: Program | None = PrivateAttr(default=None)

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        # A field of every runnable, so it is not among what a binding lacks and forwards. Stored as
        # pydantic does, but not noted as set: nothing has asked for it.
        if self.name is None:
            vars(self)["name"] = getattr(self.bound, "name", None)

    @classmethod
    def wrap(cls, runnable: Runnable[Any, Any], accelerator: Accelerator | None) -> Any:
        made = cls(bound=runnable)
        made._accelerator = accelerator
        made._program = Program(runnable, accelerator)
        return made

    def __getattr__(self, name: str) -> Any:
        # A binding forwards what it lacks to what it binds, and pydantic keeps private attributes
        # where they look lacking.
        private = object.__getattribute__(self, "__pydantic_private__")
        if private is not None and name in private:
            return private[name]
        forwarded = super().__getattr__(name)
        if name in _ENTRIES and isinstance(self.bound, BaseTool):
            return _ENTRIES[name](self, forwarded)
        return forwarded

    def explain(self) -> str:
        """Return what is inside this runnable and how each part of it runs."""
        return EXPLANATION.of(
            self.bound, self.accelerator, is_accelerated=True, program=self.program
        )

    @property
    def accelerator(self) -> Accelerator:
        return self._accelerator or activated() or default_accelerator()

    @property
    def program(self) -> Program:
        """Return what is known of this program; one that arrives from elsewhere is looked at."""
        private = self.__pydantic_private__  # a look-up by name fails first, and is then made here
        found = None if private is None else private.get("_program")
        if found is None:
            found = self._program = Program(self.bound, self._accelerator)
        return found

    def __getstate__(self) -> dict[Any, Any]:
        state = super().__getstate__()
        private = {**(state.get("__pydantic_private__") or {}), "_program": None}
        return {**state, "__pydantic_private__": private}

    # One request per call -------------------------------------------------------------------

    def _merged(self, config: Any, size: int | None) -> Any:
        """Return the config that the bound runnable gets in a plain program."""
        if not self.config and not self.config_factories:
            return config
        if size is None:
            return self._merge_configs(config)
        configs = config if isinstance(config, Sequence) else [config] * size
        return [self._merge_configs(config) for config in configs]

    def _given(
        self, config: Any, kwargs: dict[str, Any], size: int | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Return the config and the arguments that the bound runnable gets in a plain program."""
        return self._merged(config, size), {**self.kwargs, **kwargs}

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        merged, given = self._given(config, kwargs)
        with self.program.call(functools.partial(values_of, input)):
            return self.bound.invoke(input, merged, **given)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        merged, given = self._given(config, kwargs)
        with self.program.call(functools.partial(values_of, input)):
            return await self.bound.ainvoke(input, merged, **given)

    def batch(self, inputs: list[Any], config: Any = None, **kwargs: Any) -> list[Any]:
        merged, given = self._given(config, kwargs, len(inputs))
        with self.program.call(is_batch=True):
            return self.bound.batch(inputs, merged, **given)

    async def abatch(self, inputs: list[Any], config: Any = None, **kwargs: Any) -> list[Any]:
        merged, given = self._given(config, kwargs, len(inputs))
        with self.program.call(is_batch=True):
            return await self.bound.abatch(inputs, merged, **given)

    def batch_as_completed(
        self, inputs: Sequence[Any], config: Any = None, **kwargs: Any
    ) -> Iterator[Any]:
        merged, given = self._given(config, kwargs, len(inputs))
        with self.program.run(is_batch=True) as scope:
            done = self.bound.batch_as_completed(inputs, merged, **given)
            yield from stepped(iter(done), scope)

    async def abatch_as_completed(
        self, inputs: Sequence[Any], config: Any = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        merged, given = self._given(config, kwargs, len(inputs))
        with self.program.run(is_batch=True) as scope:
            done = self.bound.abatch_as_completed(inputs, merged, **given)
            async with aclosing(astepped(aiter(done), scope)) as items:
                async for item in items:
                    yield item

    def stream(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Iterator[Any]:
        merged, given = self._given(config, kwargs)
        with self.program.run(functools.partial(values_of, input)) as scope:
            items = self.bound.stream(input, merged, **given)
            yield from stepped(iter(items), scope)

    async def astream(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        merged, given = self._given(config, kwargs)
        with self.program.run(functools.partial(values_of, input)) as scope:
            chunks = self.bound.astream(input, merged, **given)
            async with aclosing(astepped(aiter(chunks), scope)) as items:
                async for item in items:
                    yield item

    def transform(
        self, input: Iterator[Any], config: RunnableConfig | None = None, **kwargs: Any
    ) -> Iterator[Any]:
        merged, given = self._given(config, kwargs)
        outside = stepped(iter(input), _here(), closes=False)
        with self.program.run() as scope:
            items = self.bound.transform(outside, merged, **given)
            yield from stepped(iter(items), scope)

    async def atransform(
        self, input: AsyncIterator[Any], config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        merged, given = self._given(config, kwargs)
        outside = astepped(aiter(input), _here(), closes=False)
        with self.program.run() as scope:
            chunks = self.bound.atransform(outside, merged, **given)
            async with aclosing(astepped(aiter(chunks), scope)) as items:
                async for item in items:
                    yield item

    def astream_events(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Any:
        given = {**self.kwargs, **kwargs}
        if given.get("version") == "v3":
            return super().astream_events(input, config, **kwargs)
        return self._events(input, config, given)

    async def _events(self, input: Any, config: Any, kwargs: dict[str, Any]) -> AsyncIterator[Any]:
        with self.program.run(functools.partial(values_of, input)) as scope:
            events = self.bound.astream_events(input, self._merged(config, None), **kwargs)
            async with aclosing(astepped(aiter(events), scope)) as items:
                async for item in items:
                    yield item

    def get_graph(self, config: RunnableConfig | None = None) -> Graph:
        return self.bound.get_graph(self._merged(config, None))

    @classmethod
    def lc_id(cls) -> list[str]:
        return RunnableBinding.lc_id()

    def to_json(self) -> Any:
        dumped: dict[str, Any] = {**super().to_json()}
        if "kwargs" in dumped and "name" not in self.model_fields_set:
            dumped["kwargs"].pop("name", None)  # the original inside has it
        return dumped

    # What makes another binding of this one keeps its accelerator ----------------------------

    def _kept(self, made: Any) -> Any:
        if isinstance(made, AcceleratedRunnable):
            made._accelerator, made._program = self._accelerator, self.program
        return made

    def bind(self, **kwargs: Any) -> Any:
        return self._kept(super().bind(**kwargs))

    def with_config(self, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return self._kept(super().with_config(config, **kwargs))

    def with_listeners(self, **kwargs: Any) -> Any:
        return self._kept(super().with_listeners(**kwargs))

    def with_types(self, *args: Any, **kwargs: Any) -> Any:
        return self._kept(super().with_types(*args, **kwargs))

    def with_retry(self, **kwargs: Any) -> Any:
        return self._kept(super().with_retry(**kwargs))


def _run_as_request(fast: AcceleratedRunnable, run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def call(*args: Any, **kwargs: Any) -> Any:
        with fast.program.call():
            return run(*args, **kwargs)

    return call


def _arun_as_request(fast: AcceleratedRunnable, run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    async def call(*args: Any, **kwargs: Any) -> Any:
        with fast.program.call():
            return await run(*args, **kwargs)

    return call


_ENTRIES = {"run": _run_as_request, "arun": _arun_as_request}


def _here() -> Callable[[], AbstractContextManager[None]]:
    """Return the present scope, for what a stream pulls from outside of it."""
    return functools.partial(scoped, current_request, current_request.get())
