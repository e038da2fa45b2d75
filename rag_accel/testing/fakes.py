"""An owned engine that computes nothing real and does exactly what a test scripts."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rag_accel.engine_api import (
    Capability,
    EngineOutput,
    EngineProfile,
    EngineRequest,
    GenerationOutput,
    Handle,
    PrimitiveKind,
    StepBudget,
    WorkId,
)
from rag_accel.engines.bases import OwnEngine
from rag_accel.errors import ClosedError, ConfigError, EngineError
from rag_accel.testing.compute import compute
from rag_accel.testing.faults import Faults, lost

Waiter = Callable[[float], object]

FAKE_PROFILE = EngineProfile(
    kinds=frozenset(PrimitiveKind),
    max_threads=64,
    pure=True,
    capabilities=frozenset({Capability.STREAM, Capability.HINT}),
)
"""Executes every kind at once."""

_INTERRUPT_POLL_S = 0.002


def no_wait(seconds: float) -> None:
    """Take no time, however long the step is scripted to be."""


@dataclass(frozen=True, slots=True)
class EngineCall:
    """A record of one call of an engine's method, in the order the calls came.

    ``ids`` are its arguments: work ids, handles or documents; for ``step`` the work held
    when the step began. ``budget`` is the one granted to a step.
    """

    method: str
    thread_id: int
    ids: tuple[str, ...] = ()
    budget: StepBudget | None = None


@dataclass(frozen=True, slots=True)
class _Progress:
    request: EngineRequest
    done: int = 0


class FakeEngine(OwnEngine):
    """A deterministic engine for any primitive, with scripted latencies and faults.

    Args:
        profile: of the engine; ``steps`` above one make it ``stepped``.
        steps: steps each piece of work takes. All but the last report ``progress`` with a new
            handle, from which later work of the same namespace resumes; with ``stream`` a text
            arrives in as many ``partial`` pieces.
        durations_s: seconds of the first steps with work; later ones follow ``profile.latency``.
        wait: called with a step's seconds: ``no_wait``, ``time.sleep`` or ``ManualClock.sleep``.
        compute: pure function from a payload to its result.
        faults: the script of faults.

    Attributes:
        calls: every call of every method, oldest first.
        served: all work that entered a step, in the batches it came in.
    """

    def __init__(
        self,
        profile: EngineProfile = FAKE_PROFILE,
        *,
        steps: int = 1,
        durations_s: Iterable[float] = (),
        wait: Waiter = no_wait,
        compute: Callable[[Any], Any] = compute,
        faults: Faults | None = None,
    ) -> None:
        if steps < 1:
            raise ConfigError(
                "bad number of steps", where="FakeEngine", found=steps, valid="from 1"
            )
        super().__init__(replace(profile, stepped=True) if steps > 1 else profile, "FakeEngine")
        self._steps = steps
        self._durations = iter(durations_s)
        self._wait = wait
        self._compute = compute
        self._faults = faults if faults is not None else Faults()
        self._held: dict[WorkId, _Progress] = {}
        self._rejected: list[EngineOutput] = []
        self._resumable: dict[Handle, _Progress] = {}
        self._handle_numbers = itertools.count(1)
        self._steps_with_work = 0
        self._interrupted = threading.Event()
        self.is_closed = False
        self.calls: list[EngineCall] = []
        self.served: list[tuple[EngineRequest, ...]] = []

    @property
    def batches(self) -> list[tuple[str, ...]]:
        """Return the work ids of each step that had work."""
        return [call.ids for call in self.calls if call.method == "step" and call.ids]

    @property
    def thread_ids(self) -> set[int]:
        """Return the threads that called methods only a worker may call; the driver uses one."""
        anywhere = ("interrupt", "hint")
        return {call.thread_id for call in self.calls if call.method not in anywhere}

    @property
    def threads_granted(self) -> list[int]:
        """Return the compute threads granted to each step that had work."""
        return [call.budget.threads for call in self.calls if call.budget and call.ids]

    @property
    def live_handles(self) -> frozenset[Handle]:
        """Return the handles given out and not yet released."""
        return frozenset(self._resumable)

    def submit(self, work: Sequence[EngineRequest]) -> None:
        self._record("submit", [request.id for request in work])
        if self.is_closed:
            raise ClosedError("the engine is closed", where="FakeEngine")
        if self._faults.is_dead(self._steps_with_work):
            raise lost()
        if self._faults.submit_error is not None:
            raise self._faults.submit_error
        for request in work:
            self._take(request)

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        """Advance all held work by one step, after the scripted time."""
        ids = [*(output.id for output in self._rejected), *self._held]
        self._record("step", ids, budget)
        if not ids:
            return []
        if not self._wait_while_hung():
            return []
        self._begin_step()
        outputs, self._rejected = self._rejected, []
        for progress in list(self._held.values()):
            outputs += self._advance(progress)
        return outputs

    def cancel(self, ids: Sequence[WorkId]) -> None:
        self._record("cancel", ids)
        for id in ids:
            self._held.pop(id, None)
        self._rejected = [output for output in self._rejected if output.id not in ids]

    def release(self, handles: Sequence[Handle]) -> None:
        self._record("release", handles)
        for handle in handles:
            self._resumable.pop(handle, None)

    def hint(self, documents: Sequence[str], namespace: str = "") -> None:
        self._record("hint", documents)

    def interrupt(self) -> None:
        """End a hanging step if the profile is ``interruptible``."""
        self._record("interrupt")
        self._interrupted.set()

    def close(self) -> None:
        self._record("close")
        self._held.clear()
        self._rejected.clear()
        self._resumable.clear()
        self.is_closed = True

    def _record(
        self, method: str, ids: Sequence[str] = (), budget: StepBudget | None = None
    ) -> None:
        self.calls.append(EngineCall(method, threading.get_ident(), tuple(ids), budget))

    def _take(self, request: EngineRequest) -> None:
        if request.id in self._held:
            raise EngineError(
                "unfinished work was submitted again", where="FakeEngine", found=request.id
            )
        earlier = self._resumable.get(request.handle) if request.handle else None
        if request.kind not in self._profile.kinds:
            self._reject(request, "a kind this engine does not execute", request.kind)
        elif request.handle and (earlier is None or earlier.request.namespace != request.namespace):
            self._reject(request, "an unknown handle", request.handle)
        else:
            self._held[request.id] = _Progress(request, earlier.done if earlier else 0)

    def _reject(self, request: EngineRequest, what: str, found: str) -> None:
        error = EngineError(what, where="FakeEngine", found=found)
        self._rejected.append(EngineOutput(request.id, "error", error=error))

    def _wait_while_hung(self) -> bool:
        """Return whether the step may go on; an interrupt ends it."""
        hang = self._faults.hang
        if hang is None:
            return True
        if not self._profile.interruptible:
            return hang.wait()
        # Two events cannot be waited for at once.
        while not hang.wait(_INTERRUPT_POLL_S):
            if self._interrupted.is_set():
                self._interrupted.clear()
                return False
        return True

    def _begin_step(self) -> None:
        """Spend the step's time, then raise if the whole step is scripted to fail."""
        self._steps_with_work += 1
        work = [progress.request for progress in self._held.values()]
        if work:
            self.served.append(tuple(work))
        predicted = self._profile.latency.predict_s(sum(request.size for request in work))
        seconds = next(self._durations, predicted)
        if seconds > 0:
            self._wait(seconds)
        try:
            self._faults.raise_in_step(self._steps_with_work, work)
        except EngineError:
            # The step is lost as a whole: its members come back one by one, under the same ids.
            self._held.clear()
            self._rejected.clear()
            raise

    def _advance(self, progress: _Progress) -> list[EngineOutput]:
        request, done = progress.request, progress.done + 1
        try:
            value = self._compute(request.payload)
        except Exception as exc:
            # A payload that cannot be computed must not take its neighbours' step with it.
            del self._held[request.id]
            return [EngineOutput(request.id, "error", error=exc)]
        outputs = self._pieces(request, value, progress.done)
        if done < self._steps:
            self._held[request.id] = _Progress(request, done)
            return [*outputs, self._checkpoint(self._held[request.id])]
        del self._held[request.id]
        final = EngineOutput(request.id, "final", value)
        reported = self._faults.spoil(request, final)
        return [] if reported is None else [*outputs, reported]

    def _checkpoint(self, progress: _Progress) -> EngineOutput:
        handle = Handle(f"fake-{next(self._handle_numbers)}")
        self._resumable[handle] = progress
        return EngineOutput(progress.request.id, "progress", handle=handle)

    def _pieces(self, request: EngineRequest, value: Any, done: int) -> list[EngineOutput]:
        if not request.stream or not isinstance(value, GenerationOutput):
            return []
        size = len(value.text)
        piece = value.text[size * done // self._steps : size * (done + 1) // self._steps]
        return [EngineOutput(request.id, "partial", piece)] if piece else []
