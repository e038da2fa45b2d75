"""Step one owned engine in a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue

from rag_accel.engine_api import Engine, EngineOutput, EngineRequest, Handle, StepBudget, WorkId
from rag_accel.errors import EngineOutputError, SchedulingError
from rag_accel.scheduler.driver.leaf import LeafClient
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
Members = Sequence[tuple[NodeKey, LeafClient | None]]


@dataclass(frozen=True, slots=True)
class _Step:
    step: StepId
    members: Members
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
    streamed: bool = False


@dataclass(slots=True)
class _Outcome:
    """Gather what one step led to."""

    reports: list[NodeReport] = field(default_factory=list[NodeReport])
    results: dict[NodeKey, Result] = field(default_factory=dict[NodeKey, Result])
    #: engine-owned state that nobody was told of
    unclaimed: list[Handle] = field(default_factory=list[Handle])

    def fail(self, node: NodeKey, error: BaseException) -> None:
        """Note that a member ended with an error."""
        self.results[node] = Result(error=error)
        self.reports.append(NodeReport(node, "error"))


class EngineWorker:
    """Own an engine's thread: everything but ``interrupt`` happens on it.

    Args:
        name: the engine's name, also the thread's.
        engine: the engine; it belongs to this worker from now on.
        report: told about every step, on the worker's thread.
        partial: told about every partial output, on the worker's thread.
        check: looks at every final output and may turn it into an error.
        ended: told when the engine is closed and the thread about to end.

    Attributes:
        step: the last step that was asked for.
        given: work that was handed over and whose end was not reported; the driver's to keep.
    """

    def __init__(
        self,
        name: EngineName,
        engine: Engine,
        report: Report,
        partial: Partial,
        check: Check,
        ended: Callable[[EngineName], None] = lambda name: None,
    ) -> None:
        self.name = name
        self.engine = engine
        self._report = report
        self._partial = partial
        self._check = check
        self._ended = ended
        self._mailbox: SimpleQueue[_Step | _Cancel | _Release | None] = SimpleQueue()
        self._held: dict[WorkId, _Held] = {}
        self._stopping = False
        self._cancels_asked = 0
        self._cancels_done = 0
        self.step: StepId | None = None
        self.given: set[NodeKey] = set()
        self.thread = threading.Thread(target=self._run, name=f"rag-accel-{name}", daemon=True)
        self.thread.start()

    def start(self, step: StepId, members: Members, budget: StepBudget) -> None:
        """Ask for a step that first takes the work of new members."""
        self.step = step
        self.given.update(node for node, _ in members)
        self._mailbox.put(_Step(step, members, budget))

    def cancel(self, nodes: tuple[NodeKey, ...]) -> None:
        """Ask the engine to forget work, after the running step, which stops waiting."""
        self.given.difference_update(nodes)
        self._cancels_asked += 1
        self._mailbox.put(_Cancel(nodes))
        if self.engine.profile.interruptible:
            self.interrupt()

    def release(self, handles: tuple[Handle, ...]) -> None:
        """Ask the engine to free handles, after the running step."""
        self._mailbox.put(_Release(handles))

    def interrupt(self) -> None:
        """Make a waiting step return soon."""
        try:
            self.engine.interrupt()
        except Exception:
            logger.exception("engine %s failed to be interrupted", self.name)

    @property
    def owes_cancels(self) -> bool:
        """Tell whether the engine has not yet been told of work it is to forget."""
        return self._cancels_done != self._cancels_asked

    def stop(self) -> None:
        """Ask the worker to end after what is already in its mailbox; may be repeated."""
        if not self._stopping:
            self._stopping = True
            self._mailbox.put(None)
            self.interrupt()

    def _run(self) -> None:
        while (message := self._mailbox.get()) is not None:
            if isinstance(message, _Step):
                self._step(message)
            else:
                self._quietly(message)
                self._cancels_done += isinstance(message, _Cancel)
            # The next get() may block for long: nothing of this message may stay alive with it.
            del message
        self._held.clear()
        try:
            self.engine.close()
        except Exception:
            logger.exception("engine %s failed to close", self.name)
        self._ended(self.name)

    def _step(self, message: _Step) -> None:
        outcome = _Outcome()
        work = self._take(message.members, outcome)
        started = time.monotonic()
        try:
            if work:
                self.engine.submit(work)
            if self._held:
                self._collect(self.engine.step(message.budget), outcome)
        except BaseException as error:
            self._fail(message.step, outcome, started, error)
            return
        if outcome.unclaimed:
            self._quietly(_Release(tuple(outcome.unclaimed)))
        duration = time.monotonic() - started
        self._report(
            StepEnded(self.name, message.step, tuple(outcome.reports), duration), outcome.results
        )

    def _take(self, members: Members, outcome: _Outcome) -> list[EngineRequest]:
        """Build the work of new members; one that cannot be built fails alone."""
        work: list[EngineRequest] = []
        for node, client in members:
            try:
                if client is None:
                    raise SchedulingError("nobody waits for this work", where=node.node)
                request = client.request(node)
            except BaseException as error:  # the caller's own code may run here
                outcome.fail(node, error)
            else:
                self._held[request.id] = _Held(node, request)
                work.append(request)
        return work

    def _collect(self, outputs: Sequence[EngineOutput], outcome: _Outcome) -> None:
        for output in outputs:
            held = self._held.get(output.id)
            if held is not None and output.kind in ("final", "error"):
                self._end(held, self._checked(held.request, output), outcome)
                continue
            if output.handle is not None:
                outcome.unclaimed.append(output.handle)
            if held is not None and output.kind == "partial":
                self._pass_on(held, output, outcome)
        if not self.engine.profile.stepped:
            for held in list(self._held.values()):
                self._end(held, _missing(held.request), outcome)

    def _pass_on(self, held: _Held, output: EngineOutput, outcome: _Outcome) -> None:
        try:
            self._partial(held.node, output)
        except Exception as error:
            self.engine.cancel([held.request.id])
            self._end(held, EngineOutput(held.request.id, "error", error=error), outcome)
            return
        if not held.streamed:
            held.streamed = True
            outcome.reports.append(NodeReport(held.node, "partial"))

    def _checked(self, request: EngineRequest, output: EngineOutput) -> EngineOutput:
        try:
            return self._check(request, output)
        except Exception as error:
            return EngineOutput(request.id, "error", error=error, handle=output.handle)

    def _end(self, held: _Held, output: EngineOutput, outcome: _Outcome) -> None:
        del self._held[held.request.id]
        if output.kind != "error":
            outcome.results[held.node] = Result(output.value, handle=output.handle)
            outcome.reports.append(NodeReport(held.node, "final"))
            return
        error = output.error
        if error is None:
            error = EngineOutputError("the engine reported an error without one", where=self.name)
        if output.handle is not None:
            outcome.unclaimed.append(output.handle)
        outcome.fail(held.node, error)

    def _fail(self, step: StepId, outcome: _Outcome, started: float, error: BaseException) -> None:
        """Report a step that raised; what it had ended until then is lost with it."""
        nodes = [*outcome.results, *(held.node for held in self._held.values())]
        members = {node: Result(error=error) for node in nodes}
        for node, result in outcome.results.items():
            if result.error is not None:
                members[node] = result
            elif result.handle is not None:
                outcome.unclaimed.append(result.handle)
        ids = list(self._held)
        self._held.clear()
        try:
            self.engine.cancel(ids)
            self.engine.release(outcome.unclaimed)
        except Exception:
            logger.exception("engine %s failed to cancel after a failed step", self.name)
        duration = time.monotonic() - started
        self._report(StepFailed(self.name, step, duration), members)

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
