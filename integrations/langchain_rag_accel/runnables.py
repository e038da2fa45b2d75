"""Run a whole runnable as one request of the scheduler, with LangChain in control."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, aclosing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from langchain_core.runnables import Runnable, RunnableBinding, RunnableConfig
from langchain_core.runnables.graph import Graph
from pydantic import PrivateAttr

from langchain_rag_accel.activation import activated
from langchain_rag_accel.context import (
    carried_identity,
    current_run,
    fail_open,
    is_usable,
    scoped,
    with_identity,
)
from langchain_rag_accel.interception import Interception
from langchain_rag_accel.stepping import astepped, stepped
from rag_accel.accelerator import (
    Accelerator,
    RequestIdentity,
    current_request,
    default_accelerator,
)
from rag_accel.accelerator.leaves import leaf_depth
from rag_accel.config import is_enabled
from rag_accel_adapters.langchain import leaves
from rag_accel_adapters.langgraph import Skeleton, skeleton

_numbers = count(1)
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Run:
    """Hold what one call passes on: its config, and the scope its code runs in."""

    config: Any
    scope: Callable[[], AbstractContextManager[None]] = nullcontext


class AcceleratedRunnable(RunnableBinding[Any, Any]):
    """Behave as the bound runnable; let its models, retrievers and embeddings be scheduled.

    Every call becomes one request; all inputs of a batch are one. Its identity travels in the
    config under a private key, and in the context of whatever runs for the call.
    """

    _accelerator: Accelerator | None = PrivateAttr(default=None)
    _program: str = PrivateAttr(default="")
    #: shared by all bindings made of this one, so that the last of them ends it
    _interception: Interception | None = PrivateAttr(default=None)
    #: how far each node is from the end, of a compiled LangGraph
    _skeleton: Skeleton | None = PrivateAttr(default=None)

    @classmethod
    def wrap(cls, runnable: Runnable[Any, Any], accelerator: Accelerator | None) -> Any:
        """Return ``runnable`` accelerated."""
        made = cls(bound=runnable)
        made._accelerator = accelerator
        made._program = f"{runnable.get_name()}#{next(_numbers)}"
        made._interception = Interception(found.obj for found in leaves(runnable))
        made._skeleton = _skeleton_of(runnable)
        return made

    def __getattr__(self, name: str) -> Any:
        # A binding forwards what it lacks to what it binds, and pydantic keeps private attributes
        # where they look lacking.
        private = object.__getattribute__(self, "__pydantic_private__")
        if private is not None and name in private:
            return private[name]
        return super().__getattr__(name)

    def explain(self) -> str:
        """Return what is inside this runnable and how each part of it runs."""
        from langchain_rag_accel.explanation import explain

        return explain(self)

    @property
    def accelerator(self) -> Accelerator:
        """Return the accelerator that schedules this runnable."""
        return self._accelerator or activated() or default_accelerator()

    def __getstate__(self) -> dict[Any, Any]:
        state = super().__getstate__()
        unkept = {"_interception": None, "_skeleton": None}
        private = {**(state.get("__pydantic_private__") or {}), **unkept}
        return {**state, "__pydantic_private__": private}

    def __setstate__(self, state: dict[Any, Any]) -> None:
        super().__setstate__(state)
        self._interception = Interception(found.obj for found in leaves(self.bound))
        self._skeleton = _skeleton_of(self.bound)

    # One request per call -------------------------------------------------------------------

    @contextmanager
    def _run(self, config: Any, size: int | None = None) -> Iterator[_Run]:
        """Run a call, of ``size`` inputs if it is a batch, as a request or as part of one."""
        merged = self._merged(config, size)
        identity, is_new = self._identity(merged)
        if identity is None:
            yield _Run(merged)
            return
        try:
            yield _Run(
                with_identity(merged, identity) if is_new else merged,
                partial(self._inside, identity),
            )
        finally:
            if is_new and not identity.accelerator.forked:
                identity.accelerator.close_request(identity)

    @contextmanager
    def _inside(self, identity: RequestIdentity) -> Iterator[None]:
        """Run code of a request; a plan of what is around this program is the better one."""
        tell = leaf_depth.get()
        if tell is None and self._skeleton and identity.accelerator.options.use_skeleton:
            tell = self._skeleton.here
        with scoped(current_request, identity), scoped(leaf_depth, tell):
            yield

    def _merged(self, config: Any, size: int | None) -> Any:
        """Return the config that the bound runnable gets in a plain program."""
        if not self.config and not self.config_factories:
            return config
        if size is None:
            return self._merge_configs(config)
        configs = config if isinstance(config, Sequence) else [config] * size
        return [self._merge_configs(one) for one in configs]

    def _identity(self, config: Any) -> tuple[RequestIdentity | None, bool]:
        """Return the request that a call belongs to, and whether it begins with this call."""
        if not is_enabled():
            return None, False
        own = self._accelerator
        outer = carried_identity(config)
        if outer is None or not is_usable(outer, own):
            outer = current_run(own)
        if outer is not None:
            return outer, False
        accelerator = self.accelerator
        try:
            return accelerator.open_request(self._program), True
        except Exception as error:
            fail_open(accelerator, error, self._program)
            return None, False

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        with self._run(config) as run, run.scope():
            return self.bound.invoke(input, run.config, **{**self.kwargs, **kwargs})

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        with self._run(config) as run, run.scope():
            return await self.bound.ainvoke(input, run.config, **{**self.kwargs, **kwargs})

    def batch(self, inputs: list[Any], config: Any = None, **kwargs: Any) -> list[Any]:
        with self._run(config, len(inputs)) as run, run.scope():
            return self.bound.batch(inputs, run.config, **{**self.kwargs, **kwargs})

    async def abatch(self, inputs: list[Any], config: Any = None, **kwargs: Any) -> list[Any]:
        with self._run(config, len(inputs)) as run, run.scope():
            return await self.bound.abatch(inputs, run.config, **{**self.kwargs, **kwargs})

    def batch_as_completed(
        self, inputs: Sequence[Any], config: Any = None, **kwargs: Any
    ) -> Iterator[Any]:
        with self._run(config, len(inputs)) as run:
            done = self.bound.batch_as_completed(inputs, run.config, **{**self.kwargs, **kwargs})
            yield from stepped(iter(done), run.scope)

    async def abatch_as_completed(
        self, inputs: Sequence[Any], config: Any = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        with self._run(config, len(inputs)) as run:
            done = self.bound.abatch_as_completed(inputs, run.config, **{**self.kwargs, **kwargs})
            async with aclosing(astepped(aiter(done), run.scope)) as items:
                async for item in items:
                    yield item

    def stream(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Iterator[Any]:
        with self._run(config) as run:
            items = self.bound.stream(input, run.config, **{**self.kwargs, **kwargs})
            yield from stepped(iter(items), run.scope)

    async def astream(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        with self._run(config) as run:
            chunks = self.bound.astream(input, run.config, **{**self.kwargs, **kwargs})
            async with aclosing(astepped(aiter(chunks), run.scope)) as items:
                async for item in items:
                    yield item

    def transform(
        self, input: Iterator[Any], config: RunnableConfig | None = None, **kwargs: Any
    ) -> Iterator[Any]:
        outside = stepped(iter(input), _here(), closes=False)
        with self._run(config) as run:
            items = self.bound.transform(outside, run.config, **{**self.kwargs, **kwargs})
            yield from stepped(iter(items), run.scope)

    async def atransform(
        self, input: AsyncIterator[Any], config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        outside = astepped(aiter(input), _here(), closes=False)
        with self._run(config) as run:
            chunks = self.bound.atransform(outside, run.config, **{**self.kwargs, **kwargs})
            async with aclosing(astepped(aiter(chunks), run.scope)) as items:
                async for item in items:
                    yield item

    def astream_events(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Any:
        if {**self.kwargs, **kwargs}.get("version") == "v3":
            # The stream that this gives lives on its own: so do its leaves, each for itself.
            identity = self.accelerator.anonymous() if is_enabled() else None
            carrying = config if identity is None else with_identity(config, identity)
            return super().astream_events(input, carrying, **kwargs)
        return self._events(input, config, {**self.kwargs, **kwargs})

    async def _events(self, input: Any, config: Any, kwargs: dict[str, Any]) -> AsyncIterator[Any]:
        with self._run(config) as run:
            events = self.bound.astream_events(input, run.config, **kwargs)
            async with aclosing(astepped(aiter(events), run.scope)) as items:
                async for item in items:
                    yield item

    def get_graph(self, config: RunnableConfig | None = None) -> Graph:
        return self.bound.get_graph(self._merged(config, None))

    @classmethod
    def lc_id(cls) -> list[str]:
        return RunnableBinding.lc_id()

    # What makes another binding of this one keeps its accelerator ----------------------------

    def _kept(self, made: Any) -> Any:
        if isinstance(made, AcceleratedRunnable):
            made._accelerator, made._program = self._accelerator, self._program
            made._interception, made._skeleton = self._interception, self._skeleton
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


def _skeleton_of(runnable: Runnable[Any, Any]) -> Skeleton | None:
    """Return the skeleton of a compiled graph; None where there is none, or it cannot be drawn."""
    try:
        return skeleton(runnable)
    except Exception:  # drawing runs code of the graph's owner
        _logger.warning("the plan of %s is unknown", runnable.get_name(), exc_info=True)
        return None


def _here() -> Callable[[], AbstractContextManager[None]]:
    """Return the present scope, for what a stream pulls from outside of it."""
    return partial(scoped, current_request, current_request.get())
