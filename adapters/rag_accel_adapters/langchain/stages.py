"""The functions that a translated program's stages call: LangChain's own runnables, in order.

What flows from stage to stage is ``StageValue``: a value, and the composite it is inside of. A
stage does one or more acts with it: open a composite, call a whole part, close a composite.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import Any, TypeAlias

from langchain_core.runnables.utils import coro_with_context

from rag_accel_adapters.langchain.parts import ProgramPart
from rag_accel_adapters.langchain.runs import CompositeRun, here


@dataclass(frozen=True, slots=True)
class StageValue:
    """A value that one stage hands to the next.

    Args:
        scope: the innermost composite that is open.
        value: what the last part returned.
        error: what ended this branch instead; nothing more of it runs.
    """

    scope: CompositeRun
    value: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Reach:
    """The act that begins a step of the outermost sequence."""

    step: int

    def run(self, scope: CompositeRun, value: Any) -> tuple[CompositeRun, Any]:
        """Note it, unless the batch this belongs to has failed."""
        scope.request.reach(self.step)
        return scope, value

    async def arun(self, scope: CompositeRun, value: Any) -> tuple[CompositeRun, Any]:
        return self.run(scope, value)


@dataclass(frozen=True, slots=True)
class Open:
    """The act that starts a composite."""

    part: ProgramPart

    def run(self, scope: CompositeRun, value: Any) -> tuple[CompositeRun, Any]:
        """Start its run where its parent would."""
        child = scope.child(self.part, value)
        return here(child.context, child.start), value

    async def arun(self, scope: CompositeRun, value: Any) -> tuple[CompositeRun, Any]:
        """Start its run where its parent would, on this loop."""
        child = scope.child(self.part, value)
        if child.context is None:
            return await child.astart(), value
        return await coro_with_context(child.astart(), child.context), value


@dataclass(frozen=True, slots=True)
class Call:
    """The act that invokes a whole part."""

    part: ProgramPart

    def run(self, scope: CompositeRun, value: Any) -> tuple[CompositeRun, Any]:
        """Invoke it in this thread."""
        config, context, kwargs = self._given(scope)
        invoke = self.part.runnable.invoke
        if context is None:
            return scope, invoke(value, config, **kwargs)
        return scope, context.run(invoke, value, config, **kwargs)

    async def arun(self, scope: CompositeRun, value: Any) -> tuple[CompositeRun, Any]:
        """Invoke it on this loop."""
        config, context, kwargs = self._given(scope)
        invoked = self.part.runnable.ainvoke(value, config, **kwargs)
        if context is None:
            return scope, await invoked
        return scope, await coro_with_context(invoked, context, create_task=True)

    def _given(self, scope: CompositeRun) -> tuple[Any, Context | None, Mapping[str, Any]]:
        config, context = scope.child_config(self.part)
        if context is None and scope.in_batch:
            context = copy_context()  # each step of a batch has its own
        return config, context, scope.kwargs if self.part.takes_kwargs else {}


@dataclass(frozen=True, slots=True)
class Aside:
    """The act that invokes a light branch of a parallel; its error waits for the main branch."""

    part: ProgramPart
    key: str

    def run(self, scope: CompositeRun, value: Any) -> tuple[CompositeRun, Any]:
        """Invoke it in this thread."""
        try:
            scope.aside[self.key] = Call(self.part).run(scope, value)[1]
        except Exception as error:
            scope.failed[self.key] = error
        return scope, value

    async def arun(self, scope: CompositeRun, value: Any) -> tuple[CompositeRun, Any]:
        """Invoke it on this loop."""
        try:
            scope.aside[self.key] = (await Call(self.part).arun(scope, value))[1]
        except Exception as error:
            scope.failed[self.key] = error
        return scope, value


@dataclass(frozen=True, slots=True)
class Close:
    """The act that ends a composite with its result."""

    part: ProgramPart

    def run(self, scope: CompositeRun, value: Any) -> tuple[CompositeRun, Any]:
        """End its run where it started."""
        result = scope.result(value)
        scope.close(result)
        return _outside(scope), result

    async def arun(self, scope: CompositeRun, value: Any) -> tuple[CompositeRun, Any]:
        """End its run where it started, on this loop."""
        result = scope.result(value)
        await scope.aclose(result)
        return _outside(scope), result


@dataclass(frozen=True, slots=True)
class Finish:
    """The act that tells that nothing is left to do."""

    def run(self, scope: CompositeRun, value: Any) -> tuple[CompositeRun, Any]:
        """Tell the caller before the scheduler can."""
        scope.request.finished(StageValue(scope, value))
        return scope, value

    async def arun(self, scope: CompositeRun, value: Any) -> tuple[CompositeRun, Any]:
        return self.run(scope, value)


Act: TypeAlias = Reach | Open | Call | Aside | Close | Finish


class _Stage:
    """Acts done one after the other with what arrives; ``joins`` is the parallel that ends here."""

    def __init__(self, name: str, acts: tuple[Act, ...], joins: ProgramPart | None) -> None:
        self.__name__ = name
        self.acts = acts
        self.joins = joins

    def _arrived(self, arrived: tuple[StageValue, ...]) -> StageValue:
        """Return what the branches brought as one: the first error in order, else all values."""
        if self.joins is None:
            return arrived[0]
        scope = arrived[0].scope
        failed = next((one for one in arrived if one.error is not None), None)
        return failed or StageValue(scope, tuple(one.value for one in arrived))


class StageFunction(_Stage):
    """Acts in the thread that calls. An error leaves once all branches beside it are over."""

    def __call__(self, *arrived: StageValue) -> StageValue:
        carried = self._arrived(arrived)
        if carried.error is not None:
            return self._pass_on(carried.scope, carried.error)
        scope, value = carried.scope, carried.value
        try:
            for act in self.acts:
                scope, value = act.run(scope, value)
        except BaseException as error:
            return _leave(scope, error)
        return StageValue(scope, value)

    def _pass_on(self, scope: CompositeRun, error: BaseException) -> StageValue:
        if scope.part is not self.joins:
            return StageValue(scope, error=error)
        if scope.parent is None:
            raise error
        return _leave(scope.parent, scope.fail(error))


class AsyncStage(_Stage):
    """Acts on the loop that awaits. An error leaves at once; branches beside it run on."""

    async def __call__(self, *arrived: StageValue) -> StageValue:
        carried = self._arrived(arrived)
        if carried.error is not None:
            return carried
        scope, value = carried.scope, carried.value
        try:
            for act in self.acts:
                scope, value = await act.arun(scope, value)
        except BaseException as error:
            return await _aleave(scope, error)
        return StageValue(scope, value)


def entered(acts: tuple[Act, ...], scope: CompositeRun, value: Any) -> StageValue:
    """Do acts before the first stage; errors leave as they are."""
    for act in acts:
        scope, value = act.run(scope, value)
    return StageValue(scope, value)


async def aentered(acts: tuple[Act, ...], scope: CompositeRun, value: Any) -> StageValue:
    """Do acts before the first stage, on this loop."""
    for act in acts:
        scope, value = await act.arun(scope, value)
    return StageValue(scope, value)


def abandon(scopes: Iterable[CompositeRun], error: BaseException) -> BaseException:
    """End runs with an error, in the order given; return the error that leaves the last."""
    for scope in scopes:
        error = scope.fail(error)
    return error


async def aabandon(scopes: Iterable[CompositeRun], error: BaseException) -> BaseException:
    """End runs with an error on this loop; return the error that leaves the last."""
    for scope in scopes:
        error = await scope.afail(error)
    return error


def _outside(scope: CompositeRun) -> CompositeRun:
    assert scope.parent is not None, "the outermost composite is ended by its caller"
    return scope.parent


def _leave(scope: CompositeRun, error: BaseException) -> StageValue:
    """End what an error leaves, up to the innermost parallel whose other branches may run.

    The outermost composite is left to the program's caller.
    """
    for outward in scope.outwards():
        if outward.part.splits:
            return StageValue(outward, error=error)
        if outward.parent is not None:
            error = outward.fail(error)
    raise error


async def _aleave(scope: CompositeRun, error: BaseException) -> StageValue:
    """End all that an error leaves, and tell the caller at once if branches may still run."""
    inside = False
    for outward in scope.outwards():
        inside = inside or outward.part.splits
        if outward.parent is not None:
            error = await outward.afail(error)
    if not inside or _is_cancelled():
        raise error
    failed = StageValue(scope, error=error)
    scope.request.finished(failed, runs_on=True)
    return failed


def _is_cancelled() -> bool:
    """Tell whether this task was asked to end, rather than its code having failed."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
