"""One owned engine, stepped in a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Final

from rag_accel.engine_api import (
    CountingEngine,
    Engine,
    EngineOutput,
    EngineRequest,
    GenerationOutput,
    Handle,
    Provisional,
    StepBudget,
    TokenUsage,
    WorkId,
)
from rag_accel.errors import EngineOutputError, SchedulingError
from rag_accel.scheduler.driver.ending import note_ending
from rag_accel.scheduler.driver.leaf import BegunWork, LeafClient
from rag_accel.scheduler.driver.outcomes import Result, StepOutcome
from rag_accel.scheduler.driver.parts import PartedWork
from rag_accel.scheduler.messages import (
    EngineName,
    NodeKey,
    NodeReport,
    StepEnded,
    StepFailed,
    StepId,
    WorkSlice,
)

logger = logging.getLogger("rag_accel.scheduler")

#: as ``Engine.step`` promises
SILENT_STEPS: Final = 1000
SILENT_STEP_S: Final = 0.001

Report = Callable[[StepEnded | StepFailed, dict[NodeKey, Result]], None]
Partial = Callable[[NodeKey, EngineOutput], bool | None]
Check = Callable[[EngineRequest, EngineOutput], EngineOutput]
Members = Sequence[tuple[NodeKey, LeafClient | None, WorkSlice | None]]


@dataclass(frozen=True, slots=True)
class _WorkerStep:
    step: StepId
    members: Members
    budget: StepBudget


@dataclass(frozen=True, slots=True)
class _Cancel:
    #: ``None`` stands for all that is held
    nodes: tuple[NodeKey, ...] | None


@dataclass(frozen=True, slots=True)
class _Release:
    handles: tuple[Handle, ...]


@dataclass(slots=True)
class _Held:
    node: NodeKey
    request: EngineRequest
    part: WorkSlice | None = None
    streamed: bool = False


class EngineCounts:
    """Changes of one engine's own counters since the last report."""

    __slots__ = ("_engine", "_last")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine if isinstance(engine, CountingEngine) else None
        self._last: dict[str, int] = {}

    def changes(self) -> tuple[tuple[str, int], ...]:
        """Return the names whose counts have changed, and by how much; none where that fails."""
        if self._engine is None:
            return ()
        try:
            counts = dict(self._engine.counts)
        except Exception:
            logger.exception("an engine failed to say what it has counted")
            return ()
        last, self._last = self._last, counts
        changes = ((name, count - last.get(name, 0)) for name, count in counts.items())
        return tuple(change for change in changes if change[1])


class Silence:
    """The consecutive steps of one engine without output or new work, and their duration.

    An engine that keeps work between steps is stepped as long as any of its work has not ended. If
    it has dropped that work without a word, its steps return at once with nothing, again and again.
    That is all that can be seen from outside; an engine that works or waits takes time, or reports.
    """

    __slots__ = ("_seconds", "_steps")

    def __init__(self) -> None:
        self._steps = 0
        self._seconds = 0.0

    def end(self) -> None:
        """Note a sign of life, or a reason to begin again."""
        self._steps, self._seconds = 0, 0.0

    def is_final(self, step_s: float) -> bool:
        """Count a step without any output; tell whether the engine has lost what it holds.

        The mean counts: that a step was held up by another thread says nothing.
        """
        self._steps += 1
        self._seconds += step_s
        if self._steps < SILENT_STEPS:
            return False
        is_over = self._seconds < SILENT_STEP_S * self._steps
        self.end()
        return is_over


class EngineWorker:
    """The thread of one owned engine: everything but ``interrupt`` happens on it.

    Args:
        name: the engine's name, also the thread's.
        engine: the engine; it belongs to this worker from now on.
        report: told about every step, on the worker's thread.
        partial: told about every partial output, on the worker's thread.
        check: looks at every final output and may turn it into an error.
        ended: told when the engine is closed and the thread about to end.
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
        self._mailbox: SimpleQueue[_WorkerStep | _Cancel | _Release | None] = SimpleQueue()
        self._held: dict[WorkId, _Held] = {}
        self._parted = PartedWork()
        self._silence = Silence()
        self._counts = EngineCounts(engine)
        self._stopping = False
        self._cancels_asked = 0
        self._cancels_done = 0
        self.thread = threading.Thread(target=self._run, name=f"rag-accel-{name}", daemon=True)
        self.thread.start()

    def start(self, step: StepId, members: Members, budget: StepBudget) -> None:
        """Ask for a step that first takes the work of new members, of some only a part."""
        self._mailbox.put(_WorkerStep(step, members, budget))

    def cancel(self, nodes: tuple[NodeKey, ...]) -> None:
        """Ask the engine to forget work, after the running step, which stops waiting."""
        self._cancel(_Cancel(nodes))

    def forget_all(self) -> None:
        """Ask the engine to forget all work that was handed over until now."""
        self._cancel(_Cancel(None))

    def _cancel(self, message: _Cancel) -> None:
        self._cancels_asked += 1
        self._mailbox.put(message)
        if self.engine.profile.interruptible:
            self.interrupt()

    def release(self, handles: tuple[Handle, ...]) -> None:
        """Ask the engine to free handles, after the running step."""
        self._mailbox.put(_Release(handles))

    def interrupt(self) -> None:
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
            note_ending(self.thread)
            self._mailbox.put(None)
            self.interrupt()

    def _run(self) -> None:
        while (message := self._mailbox.get()) is not None:
            if isinstance(message, _WorkerStep):
                self._step(message)
            else:
                self._quietly(message)
                self._cancels_done += isinstance(message, _Cancel)
            # The next get() may block for long: nothing of this message may stay alive with it.
            del message
        self._held.clear()
        self._parted = PartedWork()
        try:
            self.engine.close()
        except Exception:
            logger.exception("engine %s failed to close", self.name)
        self._ended(self.name)

    def _step(self, message: _WorkerStep) -> None:
        outcome = StepOutcome()
        work = self._take(message.members, outcome)
        started = time.monotonic()
        try:
            if work:
                self.engine.submit(work)
            if self._held:
                outputs = self.engine.step(message.budget)
                self._collect(outputs, outcome)
                is_silent = not (work or outputs)
                self._listen(is_silent, time.monotonic() - started, outcome)
        except BaseException as error:
            self._fail(message.step, outcome, started, error)
            return
        if outcome.unclaimed:
            self._quietly(_Release(tuple(outcome.unclaimed)))
        duration = time.monotonic() - started
        self._report(
            StepEnded(
                self.name, message.step, tuple(outcome.reports), duration, self._counts.changes()
            ),
            outcome.results,
        )

    def _take(self, members: Members, outcome: StepOutcome) -> list[EngineRequest]:
        """Build the work of new members; one that cannot be built fails alone."""
        work: list[EngineRequest] = []
        for node, client, part in members:
            try:
                if client is None:
                    raise SchedulingError("nobody waits for this work", where=node.node)
                if part is None:
                    built = client.request(node)
                    if isinstance(built, EngineRequest):
                        request = built
                    elif self._take_over(node, built, outcome):
                        continue
                    else:
                        request = built.request
                else:
                    request, part = self._parted.request(client, part)
            except BaseException as error:  # the caller's own code may run here
                self._parted.drop([node])
                outcome.fail(node, error)
            else:
                self._held[request.id] = _Held(node, request, part)
                work.append(request)
        return work

    def _take_over(self, node: NodeKey, begun: BegunWork, outcome: StepOutcome) -> bool:
        """Let work that a speculation has begun go on as that of a primitive, if it is here."""
        held, result = self._held.get(begun.work), begun.result
        if held is None and result is None:
            return False
        if held is not None:
            outcome.reports.append(NodeReport(held.node, "taken"))
        taken = _Held(node, replace(begun.request, id=begun.work))
        self._held[begun.work] = taken
        for output in begun.told:
            self._pass_on(taken, output, outcome)
        if result is not None and self._held.get(begun.work) is taken:
            del self._held[begun.work]
            outcome.results[node] = result
            outcome.reports.append(NodeReport(node, "final"))  # its tokens were told before
        return True

    def _listen(self, is_silent: bool, step_s: float, outcome: StepOutcome) -> None:
        """End the held work of a stepped engine that seems to have lost it."""
        if not is_silent:
            self._silence.end()
        elif self._held and self._silence.is_final(step_s):
            self.engine.cancel(list(self._held))
            for held in list(self._held.values()):
                self._end(held, _forgotten(held.request), outcome)

    def _collect(self, outputs: Sequence[EngineOutput], outcome: StepOutcome) -> None:
        for output in outputs:
            held = self._held.get(output.id)
            if held is not None and output.kind in ("final", "error"):
                self._end(held, self._checked(held.request, output), outcome)
                continue
            if output.handle is not None:
                outcome.unclaimed.append(output.handle)
            if held is not None and output.kind == "partial":
                self._pass_on(held, output, outcome)
            elif held is not None and isinstance(output.value, Provisional):
                self._tell_so_far(held, lambda output=output: output.value)
        if not self.engine.profile.stepped:
            for held in list(self._held.values()):
                self._end(held, _missing(held.request), outcome)

    def _tell_so_far(self, held: _Held, find: Callable[[], Provisional | None]) -> None:
        """Tell what work has found so far if that is wanted; nobody is to fail with it."""
        if not held.request.provisional:
            return
        try:
            if (found := find()) is not None:
                self._partial(held.node, EngineOutput(held.request.id, "progress", found))
        except Exception:
            logger.exception("what %s has found so far could not be told", held.node)

    def _pass_on(self, held: _Held, output: EngineOutput, outcome: StepOutcome) -> None:
        try:
            is_seen = self._partial(held.node, output)
        except Exception as error:
            self.engine.cancel([held.request.id])
            self._end(held, EngineOutput(held.request.id, "error", error=error), outcome)
            return
        if is_seen is not False and not held.streamed:
            held.streamed = True
            outcome.reports.append(NodeReport(held.node, "partial"))

    def _checked(self, request: EngineRequest, output: EngineOutput) -> EngineOutput:
        try:
            return self._check(request, output)
        except Exception as error:
            return EngineOutput(request.id, "error", error=error, handle=output.handle)

    def _end(self, held: _Held, output: EngineOutput, outcome: StepOutcome) -> None:
        del self._held[held.request.id]
        if output.kind != "error" and held.part is not None:
            self._end_part(held, held.part, output, outcome)
            return
        if output.kind != "error":
            outcome.results[held.node] = Result(output.value, handle=output.handle)
            outcome.reports.append(NodeReport(held.node, "final", _used(output.value)))
            return
        self._parted.drop([held.node])
        error = output.error
        if error is None:
            error = EngineOutputError("the engine reported an error without one", where=self.name)
        if output.handle is not None:
            outcome.unclaimed.append(output.handle)
        outcome.fail(held.node, error)

    def _end_part(
        self, held: _Held, part: WorkSlice, output: EngineOutput, outcome: StepOutcome
    ) -> None:
        if output.handle is not None:
            outcome.unclaimed.append(output.handle)
        try:
            whole = self._parted.add(part, output.value)
        except Exception as error:  # results that cannot be put together
            self._parted.drop([part.node])
            outcome.fail(part.node, error)
            return
        self._tell_so_far(held, lambda: self._parted.so_far(part))
        outcome.results[part.node] = Result(whole)
        outcome.reports.append(NodeReport(part.node, "final" if part.is_last else "part"))

    def _fail(
        self, step: StepId, outcome: StepOutcome, started: float, error: BaseException
    ) -> None:
        """Report a step that raised; results it had by then are lost."""
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
            if message.nodes is None:
                self._parted = PartedWork()
                gone = list(self._held)
            else:
                nodes = message.nodes
                self._parted.drop(nodes)
                gone = [held.request.id for held in self._held.values() if held.node in nodes]
            for work in gone:
                del self._held[work]
            self.engine.cancel(gone)
        except Exception:
            logger.exception("engine %s failed to forget work", self.name)


def _used(value: object) -> TokenUsage | None:
    return TokenUsage.of(value) if isinstance(value, GenerationOutput) else None


def _missing(request: EngineRequest) -> EngineOutput:
    """Return the end of work that an engine which keeps nothing did not report on."""
    error = EngineOutputError(
        "the engine ended a step without a result for this work",
        where=request.id,
        valid="one final or error output for every submitted id",
        hint="run the engine through rag_accel.testing.EngineContract",
    )
    return EngineOutput(request.id, "error", error=error)


def _forgotten(request: EngineRequest) -> EngineOutput:
    """Return the end of work that an engine which keeps its work has lost."""
    error = EngineOutputError(
        "the engine has lost this work: it neither computes nor waits, and reports nothing",
        where=request.id,
        found=f"{SILENT_STEPS} steps in a row without any output, and without taking time",
        valid="a final or error output for every submitted id, or progress now and then",
        hint="run the engine through rag_accel.testing.EngineContract",
    )
    return EngineOutput(request.id, "error", error=error)
