"""One call of a translated program: its own run here, what is inside it as a RAGraph."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rag_accel.accelerator import RequestIdentity, current_request
from rag_accel.graph import FrozenRAGraph
from rag_accel.graph.stages import Function
from rag_accel.interception.fallback import CALLER_ERRORS, fail_open
from rag_accel.interception.identity import scoped
from rag_accel.requests.program_run import ProgramRun
from rag_accel_adapters.langchain.runs import Batch, CallState, CompositeRun
from rag_accel_adapters.langchain.stages import StageValue, aabandon, abandon, aentered, entered
from rag_accel_adapters.langchain.translate import Translation


@dataclass(frozen=True, slots=True)
class TranslatedCall:
    """The state of one call of a translated program.

    Args:
        identity: the request it is.
        program: names the accelerated object.
        config: the config the plain program would get.
        kwargs: keyword arguments for its first step.
    """

    identity: RequestIdentity
    translation: Translation
    program: str
    config: Any
    kwargs: Mapping[str, Any]

    def invoke(self, given: Any) -> Any:
        """Return the program's result; raises what the program raises."""
        with scoped(current_request, self.identity):
            root = self.scope(given).start()
            try:
                result = root.result(self.run(root, given))
            except BaseException as error:
                raise abandon(root.request.left(), error)  # noqa: B904 - nearly always itself
            root.close(result)
            return result

    async def ainvoke(self, given: Any) -> Any:
        """Return the program's result, on this loop; raises what the program raises."""
        with scoped(current_request, self.identity):
            root = await self.scope(given).astart()
            try:
                result = root.result(await self.arun(root, given))
            except BaseException as error:
                raise await aabandon([*ended_by(root, error), root], error)  # noqa: B904
            await root.aclose(result)
            return result

    def scope(self, given: Any, batch: Batch | None = None, in_batch: bool = False) -> CompositeRun:
        """Return the program's own run, not yet started."""
        request = CallState(batch)
        root = self.translation.root
        return CompositeRun(root, request, self.config, given, self.kwargs, in_batch=in_batch)

    def run(self, root: CompositeRun, given: Any) -> Any:
        """Return what the program's children return, its own run having started."""
        carried = entered(self.translation.entry, root, given)
        run = ProgramRun(self.identity, self.translation.sync_lines)
        try:
            carried = run.run(carried, lambda: root.request.result)
        except CALLER_ERRORS:
            raise
        except Exception as error:
            if run.has_begun:
                raise
            fail_open(self.identity.accelerator, error, self.program)
            carried = _alone(self.translation.sync_lines, carried)
        finally:
            root.request.result = None  # which holds the request
        return _value(carried)

    async def arun(self, root: CompositeRun, given: Any) -> Any:
        """Return what the program's children return, its own run having started on this loop."""
        carried = await aentered(self.translation.entry, root, given)
        run = ProgramRun(self.identity, self.translation.async_lines)
        known = root.request.outcome = asyncio.get_running_loop().create_future()
        try:
            carried = await run.arun(carried, known, lambda _: root.request.runs_on)
        except CALLER_ERRORS:
            raise
        except Exception as error:
            if run.has_begun:
                raise
            fail_open(self.identity.accelerator, error, self.program)
            carried = await _aalone(self.translation.async_lines, carried)
        finally:
            root.request.outcome = None  # which holds the request
        return _value(carried)


def ended_by(root: CompositeRun, error: BaseException) -> list[CompositeRun]:
    """Return the runs inside a program that an error ends, innermost first.

    That is all of them, unless other branches run on. Nothing that takes a task of its own can be
    awaited by a coroutine that is being closed.
    """
    is_shared = root.request.runs_on or isinstance(error, GeneratorExit)
    return [] if is_shared else root.request.left()[:-1]


def _value(carried: StageValue) -> Any:
    if carried.error is not None:
        raise carried.error
    return carried.value


def _alone(graph: FrozenRAGraph, carried: StageValue) -> StageValue:
    """Run a graph without the scheduler: one stage after the other."""
    values: dict[str, StageValue] = {str(graph.inputs[0]): carried}
    for stage in graph.stages:
        assert isinstance(stage, Function), "a translated program is made of functions"
        carried = values[stage.output] = stage.fn(*(values[name] for name in stage.inputs))
    return carried


async def _aalone(graph: FrozenRAGraph, carried: StageValue) -> StageValue:
    """Run a graph without the scheduler on this loop: one stage after the other."""
    values: dict[str, StageValue] = {str(graph.inputs[0]): carried}
    for stage in graph.stages:
        assert isinstance(stage, Function), "a translated program is made of functions"
        carried = await stage.fn(*(values[name] for name in stage.inputs))
        values[stage.output] = carried
    return carried
