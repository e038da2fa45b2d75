"""An engine stepped on a thread of its own, here or in another process, by the scheduler's rules.

Members of a pool are such engines, and so is what another process hosts.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from rag_accel.clock import Clock
from rag_accel.engine_api import (
    Capability,
    CountingEngine,
    Engine,
    EngineOutput,
    EngineRequest,
    StepBudget,
    WorkId,
)
from rag_accel.errors import EngineOutputError

#: Seconds after which a stepped engine starts no new piece, so that newcomers join soon.
_PIECE_S = 0.01
#: Seconds that an engine waits for what computes elsewhere; newcomers interrupt it.
_WAIT_S = 0.5


@dataclass(frozen=True, slots=True)
class StepReport:
    """A report of an engine's thread.

    Args:
        outputs: of a step.
        raised: the works among them that ended because a step raised.
        is_over: whether the thread has ended.
    """

    outputs: Sequence[EngineOutput] = ()
    raised: frozenset[WorkId] = frozenset()
    is_over: bool = False


class EngineSteps:
    """Work of one engine, handed to it up to ``max_batch`` items at a time.

    Where a step raises, what was in it is tried again piece by piece, so that one bad piece fails
    alone; a piece of which parts were reported is not tried again. Everything here is called on
    one thread, which is the engine's worker.

    Args:
        engine: executes the work.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._profile = engine.profile
        waits = Capability.BOUNDS_ITS_WORK in self._profile.capabilities
        self._time_s = _WAIT_S if waits else _PIECE_S
        self._queue: deque[EngineRequest] = deque()
        self._suspects: deque[EngineRequest] = deque()
        self._held: dict[WorkId, EngineRequest] = {}
        self._reported: set[WorkId] = set()
        self._refused: list[EngineOutput] = []

    @property
    def has_work(self) -> bool:
        """Tell whether a step has something to do."""
        return bool(self._held or self._queue or self._suspects or self._refused)

    def take(self, work: Iterable[EngineRequest]) -> None:
        """Queue work."""
        self._queue.extend(work)

    def refuse(self, id: WorkId, error: Exception) -> None:
        """Let work that cannot be taken end in an error, in the next step."""
        self._refused.append(EngineOutput(id, "error", error=error))

    def cancel(self, ids: Sequence[WorkId]) -> set[WorkId]:
        """Forget work; return the ids of which there is none."""
        gone = set(ids)
        held = [id for id in ids if self._held.pop(id, None) is not None]
        waiting = {request.id for request in (*self._queue, *self._suspects)}
        self._queue = deque(request for request in self._queue if request.id not in gone)
        self._suspects = deque(request for request in self._suspects if request.id not in gone)
        self._refused = [output for output in self._refused if output.id not in gone]
        self._reported -= gone
        if held:
            self.engine.cancel(held)
        return gone.difference(held, waiting)

    def step(self, threads: int) -> StepReport:
        """Hand over what there is room for, step the engine once, and report of it."""
        outputs, self._refused = self._refused, []
        try:
            self._fill()
            if self._held:
                outputs += self._noted(self.engine.step(StepBudget(self._time_s, threads)))
        except Exception as error:
            broken = self._broken(error)
            return StepReport([*outputs, *broken], frozenset(output.id for output in broken))
        return StepReport(outputs)

    def _fill(self) -> None:
        if self._suspects:  # each alone: which of them breaks the step is not known
            if not self._held:
                self._submit([self._suspects.popleft()])
            return
        room = self._profile.max_batch - sum(request.size for request in self._held.values())
        batch: list[EngineRequest] = []
        while self._queue:
            size = self._queue[0].size
            if size > room and (batch or self._held):
                break
            room -= size
            batch.append(self._queue.popleft())
        self._submit(batch)

    def _submit(self, batch: Sequence[EngineRequest]) -> None:
        if batch:
            self._held.update((request.id, request) for request in batch)
            self.engine.submit(batch)

    def _noted(self, reported: Sequence[EngineOutput]) -> list[EngineOutput]:
        outputs = [output for output in reported if output.id in self._held]
        for output in outputs:
            if output.kind in ("final", "error"):
                self._held.pop(output.id, None)
                self._reported.discard(output.id)
            else:
                self._reported.add(output.id)
        if not self._profile.stepped:
            outputs += [self._unended(id) for id in self._held]
            self._held.clear()
        return outputs

    def _broken(self, error: Exception) -> list[EngineOutput]:
        """Return the ends of a step that raised; what may be tried again becomes a suspect."""
        held, self._held = self._held, {}
        self.engine.cancel(list(held))
        final = [id for id in held if len(held) == 1 or id in self._reported]
        self._reported.clear()
        self._suspects.extend(request for id, request in held.items() if id not in final)
        return [EngineOutput(id, "error", error=error) for id in final]

    def _unended(self, id: WorkId) -> EngineOutput:
        error = EngineOutputError(
            "an engine without steps has left work unfinished",
            where=type(self.engine).__name__,
            valid="a final output or an error for each piece of work",
        )
        return EngineOutput(id, "error", error=error)


class EngineThread:
    """The thread on which all methods of an engine run, but ``interrupt`` and ``hint``.

    Args:
        name: of the thread.
        make: returns the engine; called on the thread.
        tell: takes reports, on the thread.
        clock: tells how long a step has taken.
        threads: granted to each step.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], Engine],
        tell: Callable[[StepReport], object],
        clock: Clock,
        threads: int = 1,
    ) -> None:
        #: the engine, or why there is none
        self.made: Future[Engine] = Future()
        self.threads = threads
        #: those of the engine after its last step; replaced as a whole, for other threads
        self.counts: Mapping[str, int] = {}
        self._make = make
        self._tell = tell
        self._clock = clock
        self._began: float | None = None
        self._wake = threading.Condition()
        self._commands: list[Callable[[EngineSteps], object]] = []
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def is_started(self) -> bool:
        return self._thread.ident is not None

    @property
    def step_s(self) -> float | None:
        """Return the seconds that the present step has lasted; None between steps."""
        began = self._began
        return None if began is None else self._clock.now() - began

    def start(self) -> None:
        """Have the engine made, if this was not called before."""
        with self._wake:
            if not self.is_started:
                self._thread.start()

    def order(self, command: Callable[[EngineSteps], object]) -> None:
        """Let the thread run a command before its next step."""
        with self._wake:
            self._commands.append(command)
            self._wake.notify()
        self._interrupt()

    def close(self) -> None:
        """Let the thread drop all work, close the engine and end, behind its running step."""
        with self._wake:
            self._is_closing = True
            self._wake.notify()
        self._interrupt()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the end of the thread, if it was started."""
        if self.is_started:
            self._thread.join(timeout_s)

    def _interrupt(self) -> None:
        if self.made.done() and self.made.exception() is None:
            engine = self.made.result()
            if engine.profile.interruptible:
                engine.interrupt()

    def _run(self) -> None:
        try:
            engine = self._make()
            steps = EngineSteps(engine)
        except BaseException as error:
            self.made.set_exception(error)
            return
        self.made.set_result(engine)
        try:
            while self._obey(steps):
                if steps.has_work:
                    self._step(steps)
        finally:
            try:
                engine.close()
            finally:
                self._tell(StepReport(is_over=True))

    def _obey(self, steps: EngineSteps) -> bool:
        """Run the commands, waiting for one where there is no work; False at the end."""
        with self._wake:
            self._wake.wait_for(lambda: self._commands or self._is_closing or steps.has_work)
            commands, self._commands = self._commands, []
            if self._is_closing:
                return False
        for command in commands:
            command(steps)
        return True

    def _step(self, steps: EngineSteps) -> None:
        self._began = self._clock.now()
        try:
            report = steps.step(self.threads)
        finally:
            self._began = None
        if isinstance(steps.engine, CountingEngine):
            self.counts = dict(steps.engine.counts)
        if report.outputs:
            self._tell(report)
