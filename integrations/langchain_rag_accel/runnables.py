"""Run a whole runnable as one request of the scheduler, with LangChain in control."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from functools import partial
from itertools import count
from typing import Any, TypeVar

from langchain_core.runnables import Runnable, RunnableBinding, RunnableConfig
from langchain_core.runnables.graph import Graph
from pydantic import PrivateAttr

from langchain_rag_accel.explanation import explain_inside
from rag_accel.accelerator import (
    Accelerator,
    RequestIdentity,
    current_request,
    default_accelerator,
)
from rag_accel.config import is_enabled
from rag_accel.interception.identity import activated, current_run, fail_open, lent, scoped
from rag_accel.interception.leaf_call import inside
from rag_accel.interception.patches import Interception
from rag_accel.interception.wrappers import StreamScope, astepped, stepped
from rag_accel.leaves.leaves import leaf_depth
from rag_accel_adapters.langgraph.skeleton import (
    Skeleton,
    called_without_context,
    skeleton,
    with_streams,
)

T = TypeVar("T")

_numbers = count(1)
_logger = logging.getLogger(__name__)


class AcceleratedRunnable(RunnableBinding[Any, Any]):
    """Behave as the bound runnable; let its models, retrievers and embeddings be scheduled.

    Every call becomes one request; all inputs of a batch are one. Its identity travels in the
    context of whatever runs for the call.
    """

    _accelerator: Accelerator | None = PrivateAttr(default=None)
    _program: str = PrivateAttr(default="")
    #: shared by all bindings made of this one, so that the last of them ends it
    _interception: Interception | None = PrivateAttr(default=None)
    #: how far each node is from the end, of a compiled LangGraph
    _skeleton: Skeleton | None = PrivateAttr(default=None)
    #: ids of its leaves that LangGraph calls in threads without a context
    _lent: frozenset[int] = PrivateAttr(default=frozenset())

    @classmethod
    def wrap(cls, runnable: Runnable[Any, Any], accelerator: Accelerator | None) -> Any:
        """Return ``runnable`` accelerated."""
        made = cls(bound=runnable)
        made._accelerator = accelerator
        made._program = f"{runnable.get_name()}#{next(_numbers)}"
        made._begin()
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
        return explain_inside(self.bound, self.accelerator)

    @property
    def accelerator(self) -> Accelerator:
        """Return the accelerator that schedules this runnable."""
        return self._accelerator or activated() or default_accelerator()

    def __getstate__(self) -> dict[Any, Any]:
        state = super().__getstate__()
        unkept = {"_interception": None, "_skeleton": None, "_lent": frozenset()}
        private = {**(state.get("__pydantic_private__") or {}), **unkept}
        return {**state, "__pydantic_private__": private}

    def __setstate__(self, state: dict[Any, Any]) -> None:
        super().__setstate__(state)
        self._begin()

    def _begin(self) -> None:
        self._interception = Interception(self._program)
        self._skeleton = _of_graph(skeleton, self.bound)
        self._lent = _of_graph(called_without_context, self.bound) or frozenset()

    # One request per call -------------------------------------------------------------------

    def _run(self) -> AbstractContextManager[StreamScope]:
        """Run a call as a request or as part of one; give the scope that its code runs in."""
        identity, is_new = self._identity()
        if identity is None:
            return nullcontext(nullcontext)
        plan = self._skeleton
        # A plan of what is around this program is the better one.
        if plan is None or not identity.accelerator.options.use_skeleton:
            scope = partial(inside, None, identity)
        else:
            scope = partial(_planned, identity, plan)
        return _Request(identity, scope, self._lent) if is_new else nullcontext(scope)

    def _merged(self, config: Any, size: int | None) -> Any:
        """Return the config that the bound runnable gets in a plain program."""
        if not self.config and not self.config_factories:
            return config
        if size is None:
            return self._merge_configs(config)
        configs = config if isinstance(config, Sequence) else [config] * size
        return [self._merge_configs(one) for one in configs]

    def _given(
        self, config: Any, kwargs: dict[str, Any], size: int | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Return the config and the arguments that the bound runnable gets in a plain program."""
        return self._merged(config, size), {**self.kwargs, **kwargs}

    def _identity(self) -> tuple[RequestIdentity | None, bool]:
        """Return the request that a call belongs to, and whether it begins with this call."""
        if not is_enabled():
            return None, False
        outer = current_run(self._accelerator)
        if outer is not None:
            return outer, False
        accelerator = self.accelerator
        try:
            return accelerator.open_request(self._program), True
        except Exception as error:
            fail_open(accelerator, error, self._program)
            return None, False

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        merged, given = self._given(config, kwargs)
        with self._run() as scope, scope():
            return self.bound.invoke(input, merged, **given)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        merged, given = self._given(config, kwargs)
        with self._run() as scope, scope():
            return await self.bound.ainvoke(input, merged, **given)

    def batch(self, inputs: list[Any], config: Any = None, **kwargs: Any) -> list[Any]:
        merged, given = self._given(config, kwargs, len(inputs))
        with self._run() as scope, scope():
            return self.bound.batch(inputs, merged, **given)

    async def abatch(self, inputs: list[Any], config: Any = None, **kwargs: Any) -> list[Any]:
        merged, given = self._given(config, kwargs, len(inputs))
        with self._run() as scope, scope():
            return await self.bound.abatch(inputs, merged, **given)

    def batch_as_completed(
        self, inputs: Sequence[Any], config: Any = None, **kwargs: Any
    ) -> Iterator[Any]:
        merged, given = self._given(config, kwargs, len(inputs))
        with self._run() as scope:
            done = self.bound.batch_as_completed(inputs, merged, **given)
            yield from stepped(iter(done), scope)

    async def abatch_as_completed(
        self, inputs: Sequence[Any], config: Any = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        merged, given = self._given(config, kwargs, len(inputs))
        with self._run() as scope:
            done = self.bound.abatch_as_completed(inputs, merged, **given)
            async with aclosing(astepped(aiter(done), scope)) as items:
                async for item in items:
                    yield item

    def stream(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Iterator[Any]:
        merged, given = self._given(config, kwargs)
        with self._run() as scope:
            items = self.bound.stream(input, merged, **given)
            yield from stepped(iter(items), scope)

    async def astream(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        merged, given = self._given(config, kwargs)
        with self._run() as scope:
            chunks = self.bound.astream(input, merged, **given)
            async with aclosing(astepped(aiter(chunks), scope)) as items:
                async for item in items:
                    yield item

    def transform(
        self, input: Iterator[Any], config: RunnableConfig | None = None, **kwargs: Any
    ) -> Iterator[Any]:
        merged, given = self._given(config, kwargs)
        outside = stepped(iter(input), _here(), closes=False)
        with self._run() as scope:
            items = self.bound.transform(outside, merged, **given)
            yield from stepped(iter(items), scope)

    async def atransform(
        self, input: AsyncIterator[Any], config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        merged, given = self._given(config, kwargs)
        outside = astepped(aiter(input), _here(), closes=False)
        with self._run() as scope:
            chunks = self.bound.atransform(outside, merged, **given)
            async with aclosing(astepped(aiter(chunks), scope)) as items:
                async for item in items:
                    yield item

    def stream_events(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        streaming = self._streaming({**self.kwargs, **kwargs})
        if streaming is None:
            return super().stream_events(input, config, **kwargs)
        merged = self._merged(config, None)
        return streaming.stream_events(input, merged, **{**self.kwargs, **kwargs})

    def astream_events(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Any:
        given = {**self.kwargs, **kwargs}
        streaming = self._streaming(given)
        if streaming is not None:
            return streaming.astream_events(input, self._merged(config, None), **given)
        if given.get("version") == "v3":
            return super().astream_events(input, config, **kwargs)
        return self._events(input, config, given)

    def _streaming(self, kwargs: dict[str, Any]) -> Any:
        """Return a graph whose event streams of the third version stand on streams of ours.

        Whoever holds such a stream drives it, from wherever he is; so it has to carry its run.
        """
        if kwargs.get("version") != "v3":
            return None
        plain = AcceleratedRunnable.model_construct(bound=self.bound, kwargs={}, config={})
        return with_streams(self.bound, self._kept(plain))

    async def _events(self, input: Any, config: Any, kwargs: dict[str, Any]) -> AsyncIterator[Any]:
        with self._run() as scope:
            events = self.bound.astream_events(input, self._merged(config, None), **kwargs)
            async with aclosing(astepped(aiter(events), scope)) as items:
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
            made._lent = self._lent
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


class _Request:
    """Be one request of its own while the block runs, and close it."""

    __slots__ = ("_identity", "_lent", "_scope")

    def __init__(
        self, identity: RequestIdentity, scope: StreamScope, lent_ids: frozenset[int]
    ) -> None:
        self._identity = identity
        self._scope = scope
        self._lent = lent_ids

    def __enter__(self) -> StreamScope:
        if self._lent:
            lent[self._identity] = self._lent
        return self._scope

    def __exit__(self, *raised: object) -> None:
        identity = self._identity
        if self._lent:
            lent.pop(identity, None)
        if not identity.accelerator.forked:
            identity.accelerator.close_request(identity)


class _planned(inside):  # noqa: N801 - used as a function
    """Let what runs in the block be part of a run whose shape is known."""

    __slots__ = ("_depth", "_plan")

    def __init__(self, identity: RequestIdentity, plan: Skeleton) -> None:
        super().__init__(None, identity)
        self._plan = plan

    def __enter__(self) -> None:
        super().__enter__()
        self._depth = scoped(leaf_depth, leaf_depth.get() or self._plan.here)
        self._depth.__enter__()

    def __exit__(self, *raised: object) -> None:
        self._depth.__exit__(*raised)
        super().__exit__(*raised)


def _of_graph(look: Callable[[Any], T], runnable: Runnable[Any, Any]) -> T | None:
    """Return what is seen in a program; None where looking, which runs the owner's code, fails."""
    try:
        return look(runnable)
    except Exception as error:
        # Text only: a kept record would keep the error, its frames and so the program alive.
        _logger.warning("the plan of %s is unknown: %s", runnable.get_name(), repr(error))
        return None


def _here() -> Callable[[], AbstractContextManager[None]]:
    """Return the present scope, for what a stream pulls from outside of it."""
    return partial(scoped, current_request, current_request.get())
