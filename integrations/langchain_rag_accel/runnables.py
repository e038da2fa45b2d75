"""A whole runnable run as one request of the scheduler, with LangChain in control."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, aclosing
from typing import Any

from langchain_core.runnables import Runnable, RunnableBinding, RunnableConfig
from langchain_core.runnables.graph import Graph
from langchain_core.tools import BaseTool
from pydantic import PrivateAttr

from langchain_rag_accel.explanation import EXPLANATION
from langchain_rag_accel.given_values import values_of
from langchain_rag_accel.program import Program
from rag_accel.accelerator import Accelerator, current_request, default_accelerator
from rag_accel.interception.identity import activated, scoped
from rag_accel.interception.wrappers import astepped, stepped


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
