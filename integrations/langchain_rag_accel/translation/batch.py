"""A batch of a translated program: every input is a request of its own.

The outermost runs start and end as LangChain's do: those of a sequence all before the first step
and after the last one, and with one common error if an input fails and exceptions are raised; those
of any other program one by one.
"""

from __future__ import annotations

from asyncio import gather
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables.config import get_executor_for_config
from langchain_core.runnables.utils import gather_with_concurrency

from langchain_rag_accel.translation.call import TranslatedCall, ended_by
from rag_accel.accelerator import current_request
from rag_accel.interception.identity import scoped
from rag_accel_adapters.langchain.runs import Batch, CompositeRun, Stopped
from rag_accel_adapters.langchain.stages import aabandon, abandon


def run_batch(
    calls: Sequence[TranslatedCall], inputs: Sequence[Any], return_exceptions: bool
) -> list[Any]:
    """Return the results in order; with ``return_exceptions`` an error in place of a result.

    Raises:
        Exception: without it, the error that would end the plain program's batch.
    """
    if calls[0].translation.root.kind == "sequence":
        return _SequenceBatch(calls, inputs, return_exceptions).run()

    def one(call: TranslatedCall, given: Any) -> Any:
        try:
            return call.invoke(given)
        except Exception as error:
            if not return_exceptions:
                raise
            return error

    if len(calls) == 1:
        return [one(calls[0], inputs[0])]
    with get_executor_for_config(calls[0].config) as executor:
        return list(executor.map(one, calls, inputs))


async def arun_batch(
    calls: Sequence[TranslatedCall], inputs: Sequence[Any], return_exceptions: bool
) -> list[Any]:
    """Return the results in order, on this loop. Raises as ``run_batch``."""
    if calls[0].translation.root.kind == "sequence":
        return await _SequenceBatch(calls, inputs, return_exceptions).arun()

    async def one(call: TranslatedCall, given: Any) -> Any:
        try:
            return await call.ainvoke(given)
        except Exception as error:
            if not return_exceptions:
                raise
            return error

    limit = calls[0].config.get("max_concurrency")
    return await gather_with_concurrency(limit, *map(one, calls, inputs))


@dataclass(frozen=True, slots=True)
class _Failed:
    """The outcome of an input that failed, or that stopped because another one had."""

    step: int
    error: BaseException


class _SequenceBatch:
    def __init__(
        self, calls: Sequence[TranslatedCall], inputs: Sequence[Any], return_exceptions: bool
    ) -> None:
        self._calls = calls
        self._inputs = inputs
        self._return_exceptions = return_exceptions
        self._batch = None if return_exceptions else Batch()
        #: in the order in which they failed
        self._failed: list[_Failed] = []

    def run(self) -> list[Any]:
        roots = [root.start() for root in self._scopes()]
        try:
            outcomes = self._first_error_raised(self._outcomes(roots), in_time=False)
        except BaseException as error:
            for root in roots:
                root.fail(error)
            if self._return_exceptions:
                return [error for _ in roots]
            raise
        for root, outcome in zip(roots, outcomes, strict=True):
            if isinstance(outcome, Exception):
                root.fail(outcome)
            else:
                root.close(outcome)
        return self._returned(outcomes)

    async def arun(self) -> list[Any]:
        roots = await gather(*(root.astart() for root in self._scopes()))
        try:
            limit = self._calls[0].config.get("max_concurrency")
            coroutines = map(self._aone, self._calls, roots, self._inputs)
            outcomes = await gather_with_concurrency(limit, *coroutines)
            outcomes = self._first_error_raised(outcomes, in_time=True)
        except BaseException as error:
            await gather(*(root.afail(error) for root in roots))
            if self._return_exceptions:
                return [error for _ in roots]
            raise
        ends = [
            root.afail(outcome) if isinstance(outcome, Exception) else root.aclose(outcome)
            for root, outcome in zip(roots, outcomes, strict=True)
        ]
        await gather(*ends)
        return self._returned(outcomes)

    def _scopes(self) -> list[CompositeRun]:
        pairs = zip(self._calls, self._inputs, strict=True)
        return [call.scope(given, self._batch, in_batch=True) for call, given in pairs]

    def _outcomes(self, roots: Sequence[CompositeRun]) -> list[Any]:
        if len(roots) == 1:
            return [self._one(self._calls[0], roots[0], self._inputs[0])]
        with get_executor_for_config(self._calls[0].config) as executor:
            return list(executor.map(self._one, self._calls, roots, self._inputs))

    def _one(self, call: TranslatedCall, root: CompositeRun, given: Any) -> Any:
        with scoped(current_request, call.identity):
            try:
                return root.result(call.run(root, given))
            except BaseException as error:
                error = abandon(root.request.left()[:-1], error)
                return self._outcome(root, error)

    async def _aone(self, call: TranslatedCall, root: CompositeRun, given: Any) -> Any:
        with scoped(current_request, call.identity):
            try:
                return root.result(await call.arun(root, given))
            except BaseException as error:
                error = await aabandon(ended_by(root, error), error)
                return self._outcome(root, error)

    def _outcome(self, root: CompositeRun, error: BaseException) -> Any:
        """Return an error as what an input came to; raise what no batch takes in."""
        if not isinstance(error, Exception | Stopped):
            raise error
        if self._batch is None:
            return error
        failed = _Failed(root.request.step, error)
        if not isinstance(error, Stopped):
            self._batch.failed(failed.step)
            self._failed.append(failed)
        return failed

    def _first_error_raised(self, outcomes: list[Any], in_time: bool) -> list[Any]:
        """Return the outcomes unless an input failed: of the earliest step the first one.

        The first is that of the first input in a blocking call, as in the plain program.
        """
        failed = self._failed if in_time else [o for o in outcomes if isinstance(o, _Failed)]
        failed = [one for one in failed if not isinstance(one.error, Stopped)]
        if failed:
            raise min(failed, key=lambda one: one.step).error
        return outcomes

    def _returned(self, outcomes: list[Any]) -> list[Any]:
        first = next((outcome for outcome in outcomes if isinstance(outcome, Exception)), None)
        if self._return_exceptions or first is None:
            return outcomes
        raise first
