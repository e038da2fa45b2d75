"""An emulated accelerator that runs an LLM: modelled step times, continuous batching.

Times here are modelled, not measured: results that used them must say so. The device keeps
*absolute* times: a step ends where the one before ended plus its modelled time, so a neighbour
that keeps the CPU busy delays a report but never the device. Waiting uses no CPU.

One device serves an owned engine (``emulated/engine.py``) and plain sync and async callers (here)
at the same time, in one batch.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import aclosing, closing
from types import TracebackType

from bench.emulated.batch import (
    ContinuousBatch,
    DeviceSequence,
    DeviceStep,
    TokenSink,
    Update,
)
from bench.emulated.sinks import LoopSink, ThreadSink
from bench.emulated.stats import DeviceStats, summarise
from bench.emulated.table import DeviceTable, find_table
from bench.emulated.text import DEFAULT_MAX_TOKENS, Respond, Script, write_script
from bench.emulated.waiting import ClockWaiter, Waiter
from rag_accel.clock import Clock, MonotonicClock
from rag_accel.engine_api import GenerationInput, GenerationOutput
from rag_accel.errors import ClosedError, EngineLostError


class EmulatedDevice:
    """An emulated accelerator; started and stopped by this handle (``with`` works too).

    Args:
        table: a ``DeviceTable`` or the name of a committed one.
        respond: pure function from the messages to the answer; default: ``max_tokens``
            deterministic words seeded by a hash of the prompt and the options.
        default_max_tokens: length of the default answer where the request names none.
        clock: monotonic seconds; default: the operating system's.
        waiter: how device time passes; default: sleep until the clock says so.

    Its thread starts with the first work. All methods may be called from any thread.
    """

    def __init__(
        self,
        table: DeviceTable | str,
        *,
        respond: Respond | None = None,
        default_max_tokens: int = DEFAULT_MAX_TOKENS,
        clock: Clock | None = None,
        waiter: Waiter | None = None,
    ) -> None:
        self.table = find_table(table) if isinstance(table, str) else table
        self._respond = respond
        self._default_max_tokens = default_max_tokens
        self._clock = clock or MonotonicClock()
        self._waiter = waiter or ClockWaiter(self._clock)
        self._wake = threading.Condition()
        self._batch = ContinuousBatch(self.table)
        self._thread: threading.Thread | None = None
        self._closed = False
        self._idle = False
        self._time_s = 0.0
        self._window_start_s: float | None = None

    def __enter__(self) -> EmulatedDevice:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def generate(self, request: GenerationInput) -> GenerationOutput:
        """Return the completion; blocks the calling thread for its modelled time.

        Raises ConfigError on bad limits, ClosedError if the device closes, and what ``respond``
        raises.
        """
        with closing(self.updates(request, stream=False)) as updates:
            for update in updates:
                if update.output is not None:
                    return update.output
        raise self._closed_error()

    def stream(self, request: GenerationInput) -> Generator[str]:
        """Yield the completion word by word; closing the iterator frees its place."""
        with closing(self.updates(request, stream=True)) as updates:
            for update in updates:
                if update.delta:
                    yield update.delta

    async def agenerate(self, request: GenerationInput) -> GenerationOutput:
        """Return the completion on any event loop; cancelling frees its place."""
        async with aclosing(self.aupdates(request, stream=False)) as updates:
            async for update in updates:
                if update.output is not None:
                    return update.output
        raise self._closed_error()

    async def astream(self, request: GenerationInput) -> AsyncGenerator[str]:
        """Yield the completion word by word on any event loop; leaving frees its place."""
        async with aclosing(self.aupdates(request, stream=True)) as updates:
            async for update in updates:
                if update.delta:
                    yield update.delta

    def updates(self, request: GenerationInput, *, stream: bool) -> Generator[Update]:
        """Yield every report on one completion to a thread, the one with its output last."""
        sink = ThreadSink()
        sequence = self.plan(self.script(request), sink, stream=stream)
        self.submit([sequence])
        try:
            while True:
                update = _checked(sink.channel.get())
                yield update
                if update.is_end:
                    return
        finally:
            self.cancel([sequence])

    async def aupdates(self, request: GenerationInput, *, stream: bool) -> AsyncGenerator[Update]:
        """Yield every report on one completion, the one with its output last."""
        sink = LoopSink(asyncio.get_running_loop())
        sequence = self.plan(self.script(request), sink, stream=stream)
        self.submit([sequence])
        try:
            while True:
                update = _checked(await sink.channel.get())
                yield update
                if update.is_end:
                    return
        finally:
            self.cancel([sequence])

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
            if self._window_start_s is None:
                self._window_start_s = now
            for sequence in sequences:
                sequence.arrived_s = now
                self._batch.add(sequence)
            self._start()
            if self._idle:  # a notification within a step would only wake the thread for nothing
                self._wake.notify_all()

    def cancel(self, sequences: Sequence[DeviceSequence]) -> None:
        """Free the places of sequences; ended ones are ignored."""
        with self._wake:
            for sequence in sequences:
                self._batch.discard(sequence)

    def stats(self) -> DeviceStats:
        """Return counters since the first work or the last ``reset_stats``."""
        with self._wake:
            start = self._window_start_s
            window_s = 0.0 if start is None else self._clock.now() - start
            return summarise(self.table, self._batch, window_s)

    def reset_stats(self) -> None:
        """Begin a new window of counters now."""
        with self._wake:
            self._window_start_s = self._clock.now()
            self._batch.reset_counters()

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
                self._waiter.wait_until(self._wake, step.end_s)
            if self._closed:
                return None
            self._time_s = step.end_s
            return self._batch.end_step()

    def _begin_step(self) -> DeviceStep | None:
        while not self._closed:
            if step := self._batch.begin_step(self._time_s):
                return step
            self._idle = True
            self._waiter.wait_until(self._wake, None)
            self._idle = False
        return None

    def _deliver(self, updates: Sequence[Update]) -> None:
        by_sink: dict[TokenSink, list[Update]] = {}
        for update in updates:
            by_sink.setdefault(update.sequence.sink, []).append(update)
        for sink, group in by_sink.items():
            if not sink.deliver(group):
                self.cancel([update.sequence for update in group])

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
            left = self._batch.drain()
        self._deliver([Update(sequence, error=make_error()) for sequence in left])

    def _closed_error(self) -> ClosedError:
        return ClosedError(
            "the emulated device is closed",
            where=self.table.name,
            hint="make a new EmulatedDevice, or close it after the last request",
        )


def _checked(update: Update) -> Update:
    if update.error is not None:
        raise update.error
    return update
