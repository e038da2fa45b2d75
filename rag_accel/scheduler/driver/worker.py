"""Step one owned engine in a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue

from rag_accel.engine_api import Engine, EngineOutput, EngineRequest, Handle, StepBudget, WorkId
from rag_accel.errors import EngineOutputError
from rag_accel.scheduler.driver.outcome import Result
from rag_accel.scheduler.messages import (
    EngineName,
    NodeKey,
    NodeReport,
    StepEnded,
    StepFailed,
    StepId,
)

logger = logging.getLogger("rag_accel.scheduler")

Report = Callable[[StepEnded | StepFailed, dict[NodeKey, Result]], None]
Partial = Callable[[NodeKey, EngineOutput], None]
Check = Callable[[EngineRequest, EngineOutput], EngineOutput]


@dataclass(frozen=True, slots=True)
class _Step:
    step: StepId
    work: Mapping[NodeKey, EngineRequest]
    #: members whose payload could not even be built, with the reason
    spoiled: Mapping[NodeKey, BaseException]
    budget: StepBudget


@dataclass(frozen=True, slots=True)
class _Cancel:
    nodes: tuple[NodeKey, ...]


@dataclass(frozen=True, slots=True)
class _Release:
    handles: tuple[Handle, ...]


@dataclass(slots=True)
class _Held:
    node: NodeKey
    request: EngineRequest
    streamed: bool = field(default=False)


class EngineWorker:
    """Own an engine's thread: everything but ``interrupt`` happens on it.

    Args:
        name: the engine's name, also the thread's.
        engine: the engine; it belongs to this worker from now on.
        report: told about every step, on the worker's thread.
        partial: told about every partial output, on the worker's thread.
        check: looks at every final output and may turn it into an error.
    """

    def __init__(
        self, name: EngineName, engine: Engine, report: Report, partial: Partial, check: Check
    ) -> None:
        self.name = name
        self.engine = engine
        self._report = report
        self._partial = partial
        self._check = check
        self._mailbox: SimpleQueue[_Step | _Cancel | _Release | None] = SimpleQueue()
        self._held: dict[WorkId, _Held] = {}
        self._thread = threading.Thread(target=self._run, name=f"rag-accel-{name}", daemon=True)
        self._thread.start()

    def start(
        self,
        step: StepId,
        work: Mapping[NodeKey, EngineRequest],
        spoiled: Mapping[NodeKey, BaseException],
        budget: StepBudget,
    ) -> None:
        """Ask for a step that first takes ``work``."""
        self._mailbox.put(_Step(step, work, spoiled, budget))

    def cancel(self, nodes: tuple[NodeKey, ...]) -> None:
        """Ask the engine to forget work, after the running step."""
        self._mailbox.put(_Cancel(nodes))

    def release(self, handles: tuple[Handle, ...]) -> None:
        """Ask the engine to free handles, after the running step."""
        self._mailbox.put(_Release(handles))

    def interrupt(self) -> None:
        """Make a waiting step return soon."""
        self.engine.interrupt()

    def stop(self) -> None:
        """Ask the worker to end after what is already in its mailbox."""
        self._mailbox.put(None)
        self.engine.interrupt()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end; tell whether it did."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (message := self._mailbox.get()) is not None:
            if isinstance(message, _Step):
                self._step(message)
            else:
                self._quietly(message)
            # The next get() may block for long: nothing of this message may stay alive with it.
            del message
        try:
            self.engine.close()
        except Exception:
            logger.exception("engine %s failed to close", self.name)

    def _step(self, message: _Step) -> None:
        started = time.monotonic()
        for node, request in message.work.items():
            self._held[request.id] = _Held(node, request)
        try:
            outputs: Sequence[EngineOutput] = ()
            if message.work:
                self.engine.submit(list(message.work.values()))
            if self._held:
                outputs = self.engine.step(message.budget)
            reports, results = self._collect(outputs)
        except BaseException as error:
            self._fail(message, started, error)
            return
        for node, error in message.spoiled.items():
            results[node] = Result(error=error)
            reports.append(NodeReport(node, "error"))
        duration = time.monotonic() - started
        self._report(StepEnded(self.name, message.step, tuple(reports), duration), results)

    def _collect(
        self, outputs: Sequence[EngineOutput]
    ) -> tuple[list[NodeReport], dict[NodeKey, Result]]:
        reports: list[NodeReport] = []
        results: dict[NodeKey, Result] = {}
        for raw in outputs:
            held = self._held.get(raw.id)
            if held is None:
                continue
            if raw.kind == "partial":
                self._pass_on(held, raw, reports)
            elif raw.kind in ("final", "error"):
                output = self._check(held.request, raw)
                self._end(held, output, reports, results)
        if not self.engine.profile.stepped:
            for held in list(self._held.values()):
                self._end(held, _missing(held.request), reports, results)
        return reports, results

    def _pass_on(self, held: _Held, output: EngineOutput, reports: list[NodeReport]) -> None:
        self._partial(held.node, output)
        if not held.streamed:
            held.streamed = True
            reports.append(NodeReport(held.node, "partial"))

    def _end(
        self,
        held: _Held,
        output: EngineOutput,
        reports: list[NodeReport],
        results: dict[NodeKey, Result],
    ) -> None:
        del self._held[held.request.id]
        failed = output.kind == "error"
        error = output.error
        if failed and error is None:
            error = EngineOutputError("the engine reported an error without one", where=self.name)
        results[held.node] = Result(output.value, error if failed else None, output.handle)
        reports.append(NodeReport(held.node, "error" if failed else "final"))

    def _fail(self, message: _Step, started: float, error: BaseException) -> None:
        members = {held.node: Result(error=error) for held in self._held.values()}
        for node, reason in message.spoiled.items():
            members[node] = Result(error=reason)
        ids = list(self._held)
        self._held.clear()
        try:
            self.engine.cancel(ids)
        except Exception:
            logger.exception("engine %s failed to cancel after a failed step", self.name)
        duration = time.monotonic() - started
        self._report(StepFailed(self.name, message.step, duration), members)

    def _quietly(self, message: _Cancel | _Release) -> None:
        try:
            if isinstance(message, _Release):
                self.engine.release(list(message.handles))
                return
            gone = [held.request.id for held in self._held.values() if held.node in message.nodes]
            for work in gone:
                del self._held[work]
            self.engine.cancel(gone)
        except Exception:
            logger.exception("engine %s failed to forget work", self.name)


def _missing(request: EngineRequest) -> EngineOutput:
    error = EngineOutputError(
        "the engine ended a step without a result for this work",
        where=request.id,
        valid="one final or error output for every submitted id",
        hint="run the engine through rag_accel.testing.EngineContract",
    )
    return EngineOutput(request.id, "error", error=error)
