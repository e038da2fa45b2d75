"""An emulated accelerator that runs an LLM: modelled step times, continuous batching.

Times here are modelled, not measured: results that used them must say so. The device keeps
*absolute* times: a step ends where the one before ended plus its modelled time, so a neighbour
that keeps the CPU busy delays a report but never the device. Waiting uses no CPU.

Engines (``emulated/engine.py``) share the batch of their device.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType

from bench.emulated.batch import (
    ContinuousBatch,
    DeviceSequence,
    DeviceStep,
    TokenSink,
    Update,
)
from bench.emulated.table import DeviceTable
from bench.emulated.text import DEFAULT_MAX_TOKENS, Respond, Script, write_script
from rag_accel.clock import Clock, MonotonicClock
from rag_accel.engine_api import GenerationInput
from rag_accel.errors import ClosedError, EngineLostError

Wait = Callable[[threading.Condition, float | None], object]
"""Returns at a time of the clock, or when the condition, which is held, is notified.

It may return early; without a time it waits for a notification only.
"""


class EmulatedDevice:
    """An emulated accelerator; started and stopped by this handle (``with`` works too).

    Args:
        table: the step times.
        respond: pure function from the messages to the answer; default: ``max_tokens``
            deterministic words seeded by a hash of the prompt and the options.
        default_max_tokens: length of the default answer where the request names none.
        clock: monotonic seconds; default: the operating system's.
        wait: how device time passes; default: sleep until the clock says so.

    Its thread starts with the first work. All methods may be called from any thread. ``batch`` has
    the counts of its work, which are final once the answers are there.
    """

    def __init__(
        self,
        table: DeviceTable,
        *,
        respond: Respond | None = None,
        default_max_tokens: int = DEFAULT_MAX_TOKENS,
        clock: Clock | None = None,
        wait: Wait | None = None,
    ) -> None:
        self.table = table
        self._respond = respond
        self._default_max_tokens = default_max_tokens
        self._clock = clock or MonotonicClock()
        self._wait = wait or self._sleep
        self._wake = threading.Condition()
        self.batch = ContinuousBatch(self.table)
        self._thread: threading.Thread | None = None
        self._closed = False
        self._idle = False
        self._time_s = 0.0

    def __enter__(self) -> EmulatedDevice:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def script(self, request: GenerationInput) -> Script:
        """Write the completion of ``request`` without timing it, on the calling thread."""
        return write_script(request, self._respond, default_max_tokens=self._default_max_tokens)

    def plan(
        self,
        script: Script,
        sink: TokenSink,
        *,
        stream: bool = False,
        cached_tokens: int = 0,
        prefill_only: bool = False,
    ) -> DeviceSequence:
        """Make a sequence whose first ``cached_tokens`` prompt tokens need no prefill."""
        left = max(0, script.prompt_tokens - cached_tokens)
        return DeviceSequence(script, sink, left, stream, prefill_only)

    def submit(self, sequences: Sequence[DeviceSequence]) -> None:
        """Queue sequences; they join the batch at the next step border, together.

        Raises ClosedError on a closed device.
        """
        with self._wake:
            if self._closed:
                raise self._closed_error()
            now = self._clock.now()
            for sequence in sequences:
                sequence.arrived_s = now
                self.batch.add(sequence)
            self._start()
            if self._idle:  # a notification within a step would only wake the thread for nothing
                self._wake.notify_all()

    def cancel(self, sequences: Sequence[DeviceSequence]) -> None:
        """Free the places of sequences; ended ones are ignored."""
        with self._wake:
            for sequence in sequences:
                self.batch.discard(sequence)

    def close(self) -> None:
        """Stop the thread; callers still waiting get ClosedError. Idempotent."""
        with self._wake:
            self._closed = True
            thread, self._thread = self._thread, None
            self._wake.notify_all()
        if thread is not None:
            thread.join()
        self._end_all(self._closed_error)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name=f"emulated-{self.table.name}", daemon=True
            )
            self._thread.start()

    def _run(self) -> None:
        try:
            while (updates := self._run_step()) is not None:
                self._deliver(updates)
        except Exception as exc:
            self._fail(exc)

    def _run_step(self) -> list[Update] | None:
        """Let one step pass and return its reports; None once the device is closed."""
        with self._wake:
            step = self._begin_step()
            if step is None:
                return None
            while not self._closed and self._clock.now() < step.end_s:
                self._wait(self._wake, step.end_s)
            if self._closed:
                return None
            self._time_s = step.end_s
            return self.batch.end_step()

    def _begin_step(self) -> DeviceStep | None:
        while not self._closed:
            if step := self.batch.begin_step(self._time_s):
                return step
            self._idle = True
            self._wait(self._wake, None)
            self._idle = False
        return None

    def _deliver(self, updates: Sequence[Update]) -> None:
        by_sink: dict[TokenSink, list[Update]] = {}
        for update in updates:
            by_sink.setdefault(update.sequence.sink, []).append(update)
        for sink, group in by_sink.items():
            sink.deliver(group)

    def _sleep(self, wake: threading.Condition, until_s: float | None) -> None:
        """Release the lock until then; that uses no CPU."""
        wake.wait(None if until_s is None else max(0.0, until_s - self._clock.now()))

    def _fail(self, cause: Exception) -> None:
        def lost() -> EngineLostError:
            found = type(cause).__name__
            error = EngineLostError("the device stopped", where=self.table.name, found=found)
            error.__cause__ = cause
            return error

        with self._wake:
            self._closed = True
        self._end_all(lost)

    def _end_all(self, make_error: Callable[[], Exception]) -> None:
        with self._wake:
            left = self.batch.drain()
        self._deliver([Update(sequence, error=make_error()) for sequence in left])

    def _closed_error(self) -> ClosedError:
        return ClosedError(
            "the emulated device is closed",
            where=self.table.name,
            hint="make a new EmulatedDevice, or close it after the last request",
        )
