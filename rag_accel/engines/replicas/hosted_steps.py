"""The steps of an engine in another process, by the rules of the scheduler."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from rag_accel.clock import Clock
from rag_accel.engine_api import (
    Capability,
    Engine,
    EngineOutput,
    EngineRequest,
    StepBudget,
    WorkId,
)
from rag_accel.engines.replicas.messages import WHERE, HostedWork, work_id
from rag_accel.errors import EngineOutputError

#: Seconds after which a stepped engine starts no new piece, so that newcomers join soon.
_PIECE_S = 0.01
#: Seconds that an engine waits for what computes elsewhere; newcomers interrupt it.
_WAIT_S = 0.5
_EARLY = 10_000


class HostedSteps:
    """Work of one engine, handed to it up to ``max_batch`` items at a time.

    Where a step raises, what was in it is tried again piece by piece, so that one bad piece fails
    alone; a piece of which parts were reported is not tried again. Everything here is called on
    one thread, which is the engine's worker.

    Args:
        engine: executes the work.
        threads: granted to each step.
        clock: on which requests are told their deadlines.
    """

    def __init__(self, engine: Engine, threads: int, clock: Clock) -> None:
        self._engine = engine
        self._profile = engine.profile
        self._clock = clock
        waits = Capability.BOUNDS_ITS_WORK in self._profile.capabilities
        self._budget = StepBudget(_WAIT_S if waits else _PIECE_S, threads)
        self._queue: deque[EngineRequest] = deque()
        self._suspects: deque[EngineRequest] = deque()
        self._held: dict[WorkId, EngineRequest] = {}
        self._streamed: set[WorkId] = set()
        self._ended: list[EngineOutput] = []
        # Cancelled before they came: calls of a process may overtake each other.
        self._gone_early: dict[WorkId, None] = {}

    @property
    def has_work(self) -> bool:
        """Tell whether a step has something to do."""
        return bool(self._held or self._queue or self._suspects or self._ended)

    def take(self, work: Iterable[HostedWork]) -> None:
        """Queue work; what cannot be read here ends in an error."""
        for item in work:
            id = work_id(item.number)
            if id in self._gone_early:
                del self._gone_early[id]
                continue
            try:
                self._queue.append(item.request(self._clock.now()))
            except Exception as error:
                self._ended.append(EngineOutput(id, "error", error=error))

    def cancel(self, ids: Sequence[WorkId]) -> None:
        """Forget work, also such as has not come yet."""
        gone = set(ids)
        held = [id for id in ids if self._held.pop(id, None) is not None]
        waiting = {request.id for request in (*self._queue, *self._suspects)}
        self._queue = deque(request for request in self._queue if request.id not in gone)
        self._suspects = deque(request for request in self._suspects if request.id not in gone)
        self._ended = [output for output in self._ended if output.id not in gone]
        self._streamed -= gone
        if held:
            self._engine.cancel(held)
        for id in gone.difference(held, waiting):
            self._gone_early[id] = None
        while len(self._gone_early) > _EARLY:
            del self._gone_early[next(iter(self._gone_early))]

    def step(self) -> list[EngineOutput]:
        """Hand over what there is room for, step the engine once, and return what happened."""
        self._fill()
        outputs, self._ended = self._ended, []
        if not self._held:
            return outputs
        try:
            reported = list(self._engine.step(self._budget))
        except Exception as error:
            return outputs + self._broken(error)
        return outputs + self._noted(reported)

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
        if not batch:
            return
        try:
            self._engine.submit(batch)
        except Exception as error:
            self._ended += [EngineOutput(request.id, "error", error=error) for request in batch]
        else:
            self._held.update((request.id, request) for request in batch)

    def _noted(self, reported: Sequence[EngineOutput]) -> list[EngineOutput]:
        outputs = [output for output in reported if output.id in self._held]
        for output in outputs:
            if output.kind in ("final", "error"):
                self._held.pop(output.id, None)
                self._streamed.discard(output.id)
            else:
                self._streamed.add(output.id)
        if not self._profile.stepped:
            outputs += [self._unended(id) for id in self._held]
            self._held.clear()
        return outputs

    def _broken(self, error: Exception) -> list[EngineOutput]:
        """Return the ends of a step that raised; what may be tried again becomes a suspect."""
        held, self._held = self._held, {}
        self._engine.cancel(list(held))
        final = [id for id in held if len(held) == 1 or id in self._streamed]
        self._streamed.clear()
        self._suspects.extend(request for id, request in held.items() if id not in final)
        return [EngineOutput(id, "error", error=error) for id in final]

    def _unended(self, id: WorkId) -> EngineOutput:
        error = EngineOutputError(
            "an engine without steps has left work unfinished",
            where=WHERE,
            valid="a final output or an error for each piece of work",
        )
        return EngineOutput(id, "error", error=error)
