"""Calls of a translated program: the runs they have open, and their results.

A composite that was taken apart has a run of its own, kept as LangChain keeps it: it starts before
its first child, its children are told of it, and it ends with its result or with the error that
left it, all by LangChain's own functions and in the context of the composite's own code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextvars import Context, copy_context
from dataclasses import KW_ONLY, dataclass, field
from threading import Lock
from typing import Any, TypeVar

from langchain_core.callbacks import AsyncCallbackManager, CallbackManager
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import (
    _set_config_context,
    ensure_config,
    get_async_callback_manager_for_config,
    get_callback_manager_for_config,
    patch_config,
)

from rag_accel_adapters.langchain.parts import ProgramPart


class Stopped(BaseException):
    """A request of a batch stops, as the batch has already failed; never reaches the user."""


class Batch:
    """The inputs of one batch; none begins a step beyond one in which another input has failed."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._last: int | None = None

    def check(self, step: int) -> None:
        """Raise Stopped if an earlier step has failed."""
        with self._lock:
            if self._last is not None and step > self._last:
                raise Stopped

    def failed(self, step: int) -> None:
        """Note that an input failed in this step."""
        with self._lock:
            self._last = step if self._last is None else min(step, self._last)


class CallState:
    """The runs that one call of a translated program has open.

    Args:
        batch: the batch this call is an input of, if steps of others matter to it.

    Attributes:
        step: the step of the outermost sequence that it has reached.
        result: what the last stage made of it, once it has.
        outcome: resolved with the same, or with the first error that reaches the program while
            other branches may still run; set by an async caller.
        runs_on: whether there was such an error.
    """

    def __init__(self, batch: Batch | None = None) -> None:
        self.step = 0
        self.result: Any = None
        self.runs_on = False
        self.outcome: asyncio.Future[Any] | None = None
        self._batch = batch
        self._lock = Lock()
        self._open: dict[CompositeRun, None] = {}

    def reach(self, step: int) -> None:
        """Note that a step of the outermost sequence begins.

        Raises:
            Stopped: if it must not.
        """
        if self._batch is not None:
            self._batch.check(step)
        self.step = step

    def opened(self, scope: CompositeRun) -> None:
        """Note that a run has started."""
        with self._lock:
            self._open[scope] = None

    def take(self, scope: CompositeRun) -> bool:
        """Tell whether a run is still to be ended; only the first to ask may end it."""
        with self._lock:
            return self._open.pop(scope, self) is None

    def finished(self, result: Any, runs_on: bool = False) -> None:
        """Tell the waiting caller the program's result, and whether other branches run on."""
        self.runs_on = self.runs_on or runs_on
        self.result = result
        if self.outcome is not None and not self.outcome.done():
            self.outcome.set_result(result)

    def left(self) -> list[CompositeRun]:
        """Return the runs still open, innermost first."""
        with self._lock:
            return list(reversed(self._open))


T = TypeVar("T")


@dataclass(slots=True, eq=False, repr=False)
class CompositeRun:
    """One composite that has started and not yet ended, as its children see it.

    Args:
        part: what it is; a program that is one whole part has a scope without a run.
        given: its input.
        context: where its own code runs; ``None`` is wherever its caller is.
        in_batch: whether it is a sequence that runs as part of ``batch``: LangChain then calls
            its steps without putting their config into the context.
    """

    part: ProgramPart
    request: CallState
    config: Any
    given: Any
    kwargs: Mapping[str, Any]
    _: KW_ONLY
    parent: CompositeRun | None = None
    context: Context | None = None
    in_batch: bool = False
    #: what branches done aside have returned, and raised, by key
    aside: dict[str, Any] = field(init=False, default_factory=dict[str, Any])
    failed: dict[str, BaseException] = field(init=False, default_factory=dict[str, BaseException])
    _run: Any = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.in_batch = self.in_batch and self.part.kind == "sequence"

    # Starting, in the context it belongs to ---------------------------------------------------

    def start(self) -> CompositeRun:
        self._merge()
        if self.part.is_composite:
            manager = self._manager()
            self._run = manager.on_chain_start(None, self.given, **self._named())
        self.request.opened(self)
        return self

    async def astart(self) -> CompositeRun:
        """Start its run on this loop."""
        self._merge()
        if self.part.is_composite:
            manager = self._async_manager()
            self._run = await manager.on_chain_start(None, self.given, **self._named())
        self.request.opened(self)
        return self

    def _merge(self) -> None:
        if not self.part.is_composite:
            return
        for binding in self.part.bindings:
            self.config = binding._merge_configs(self.config)
            self.kwargs = {**binding.kwargs, **self.kwargs}
        self.config = ensure_config(self.config)

    def _manager(self) -> CallbackManager:
        if self.in_batch or self.part.kind == "parallel":
            return CallbackManager.configure(**_inherited(self.config))
        return get_callback_manager_for_config(self.config)

    def _async_manager(self) -> AsyncCallbackManager:
        if self.in_batch:
            return AsyncCallbackManager.configure(**_inherited(self.config))
        return get_async_callback_manager_for_config(self.config)

    def _named(self) -> dict[str, Any]:
        name = self.config.get("run_name") or self.part.runnable.get_name()
        named = {"name": name, "run_id": self.config.pop("run_id", None)}
        return {"run_type": None, **named} if self.part.kind == "assign" else named

    # Children ---------------------------------------------------------------------------------

    def child(self, part: ProgramPart, given: Any) -> CompositeRun:
        """Return the scope of a composite inside, not yet started.

        Raises:
            ValueError: if this is an assign whose input is no dict.
        """
        if self.part.kind == "assign" and not isinstance(given, dict):
            raise ValueError("The input to RunnablePassthrough.assign() must be a dict.")
        config, context = self.child_config(part)
        kwargs = self.kwargs if part.takes_kwargs else {}
        return CompositeRun(
            part,
            self.request,
            config,
            given,
            kwargs,
            parent=self,
            context=context,
            in_batch=self.in_batch,
        )

    def child_config(self, part: ProgramPart) -> tuple[Any, Context | None]:
        """Return the config a child gets, and the context its code runs in."""
        if self._run is None:
            return self.config, self.context
        config = patch_config(self.config, callbacks=self._run.get_child(part.tag))
        if self.in_batch:
            return config, self.context
        context = copy_context() if self.context is None else self.context.copy()
        context.run(_set_config_context, config)
        return config, context

    # Ending -----------------------------------------------------------------------------------

    def result(self, value: Any) -> Any:
        """Return what it returns when its children have returned ``value``.

        Of a parallel with several branches that is a tuple, in the order of its keys.

        Raises:
            Exception: what a branch done aside has raised.
        """
        for error in self.failed.values():
            raise error
        if self.part.splits:
            return dict(zip(self.part.keys, value, strict=True))
        if self.part.kind == "parallel":
            return {key: self.aside.get(key, value) for key in self.part.keys}
        return {**self.given, **value} if self.part.kind == "assign" else value

    def close(self, value: Any) -> None:
        """End its run with its result."""
        if self.request.take(self) and self._run is not None:
            here(self.context, lambda: self._run.on_chain_end(value))

    async def aclose(self, value: Any) -> None:
        """End its run with its result on this loop."""
        if self.request.take(self) and self._run is not None:
            await ahere(self.context, self._run.on_chain_end(value))

    def fail(self, error: BaseException) -> BaseException:
        """End its run with an error; return the error that leaves it."""
        error = self._foremost(error)
        try:
            if self.request.take(self) and self._run is not None:
                here(self.context, lambda: self._run.on_chain_error(error))
        except BaseException as other:  # a handler's own
            return other
        return error

    async def afail(self, error: BaseException) -> BaseException:
        """End its run with an error on this loop; return the error that leaves it."""
        if isinstance(error, Exception):  # the first in time is that of a branch done aside
            error = next(iter(self.failed.values()), error)
        try:
            if self.request.take(self) and self._run is not None:
                await ahere(self.context, self._run.on_chain_error(error))
        except BaseException as other:
            return other
        return error

    def _foremost(self, error: BaseException) -> BaseException:
        """Return the error of the first branch that failed; ``error`` may be the main one's."""
        if not self.failed or not isinstance(error, Exception):
            return error
        is_main = all(error is not other for other in self.failed.values())
        first = next(key for key in self.part.keys if key in self.failed or is_main)
        return self.failed.get(first, error)

    def outwards(self) -> Iterator[CompositeRun]:
        """Yield this scope and those around it."""
        scope: CompositeRun | None = self
        while scope is not None:
            yield scope
            scope = scope.parent


def here(context: Context | None, call: Callable[[], T]) -> T:
    """Call in a context, or where the caller is."""
    return call() if context is None else context.run(call)


async def ahere(context: Context | None, coroutine: Coroutine[Any, Any, T]) -> T:
    """Await in a task with a context, or where the caller is."""
    if context is None:
        return await coroutine
    return await asyncio.get_running_loop().create_task(coroutine, context=context)


def _inherited(config: RunnableConfig) -> dict[str, Any]:
    return {
        "inheritable_callbacks": config.get("callbacks"),
        "inheritable_tags": config.get("tags"),
        "inheritable_metadata": config.get("metadata"),
    }
