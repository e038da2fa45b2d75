"""Continuous batching with chunked prefill, modelled: which sequence advances in which step.

Pure: no clock, no thread, no sleep. A step is planned by ``begin_step`` at a device time and its
effects are reported by ``end_step``; the batch's driver lets that time pass in between.
Sequences enter and leave at step borders only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bench.emulated.table import DeviceTable, step_time_s
from bench.emulated.text import Script
from rag_accel.engine_api import GenerationOutput


class TokenSink(Protocol):
    """A receiver of what happened to the sequences of one consumer, once per step. Hashable."""

    def deliver(self, updates: Sequence[Update]) -> None:
        """Hand over the updates."""
        ...


@dataclass(slots=True, eq=False)
class DeviceSequence:
    """One prompt on the device. Equal only to itself.

    Args:
        script: its completion; empty pieces and ``prefill_only`` read the prompt and end.
        sink: told of it.
        prefill_left: prompt tokens not read yet.
        stream: whether every token is reported, or only the end.
        arrived_s: device time from which it may be admitted.
        emitted: tokens written so far.
    """

    script: Script
    sink: TokenSink
    prefill_left: int
    stream: bool = False
    prefill_only: bool = False
    arrived_s: float = 0.0
    emitted: int = 0
    cancelled: bool = False

    @property
    def context_tokens(self) -> int:
        """Return the tokens its cache holds once the prompt is read."""
        return self.script.prompt_tokens + self.emitted


@dataclass(frozen=True, slots=True)
class Update:
    """A report on one sequence: a text increment, the end with its output, or an error."""

    sequence: DeviceSequence
    delta: str = ""
    output: GenerationOutput | None = None
    error: BaseException | None = None

    @property
    def is_end(self) -> bool:
        """Tell whether nothing follows."""
        return self.output is not None or self.error is not None


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """The start and end of a planned step, in device seconds."""

    start_s: float
    end_s: float


@dataclass(slots=True)
class BatchCounters:
    """Counts of a device's work."""

    steps: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    busy_s: float = 0.0


@dataclass(slots=True)
class _Plan:
    prefill: dict[DeviceSequence, int] = field(default_factory=dict)
    decode: list[DeviceSequence] = field(default_factory=list)
    context_tokens: int = 0
    duration_s: float = 0.0


class ContinuousBatch:
    """At most ``table.max_sequences`` sequences that advance step by step, oldest first."""

    def __init__(self, table: DeviceTable) -> None:
        self.counters = BatchCounters()
        self._table = table
        self._waiting: deque[DeviceSequence] = deque()
        self._running: list[DeviceSequence] = []
        self._plan = _Plan()

    @property
    def num_running(self) -> int:
        """Return the sequences admitted and not ended."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Return the sequences not admitted yet."""
        return len(self._waiting)

    def add(self, sequence: DeviceSequence) -> None:
        """Queue a sequence; arrivals must not go back in time."""
        self._waiting.append(sequence)

    def discard(self, sequence: DeviceSequence) -> None:
        """Free the sequence's place at once; unknown ones are ignored."""
        sequence.cancelled = True
        if sequence in self._running:
            self._running.remove(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)

    def drain(self) -> list[DeviceSequence]:
        """Remove and return everything that has not ended."""
        left = [*self._running, *self._waiting]
        self._running.clear()
        self._waiting.clear()
        return left

    def begin_step(self, at_s: float) -> DeviceStep | None:
        """Plan the next step at or after device time ``at_s``; None without work.

        An idle device waits for the oldest arrival, so a driver that comes late loses no time.
        """
        if not self._running and self._waiting:
            at_s = max(at_s, self._waiting[0].arrived_s)
        self._admit(at_s)
        if not self._running:
            return None
        self._plan = self._make_plan()
        return DeviceStep(at_s, at_s + self._plan.duration_s)

    def end_step(self) -> list[Update]:
        """Apply the planned step and report on every sequence that streams or ended."""
        plan = self._plan
        self._count(plan)
        updates: list[Update] = []
        for sequence, tokens in plan.prefill.items():
            sequence.prefill_left -= tokens
            if sequence.prefill_left == 0 and not sequence.cancelled:
                self._advance(sequence, updates)
        for sequence in plan.decode:
            if not sequence.cancelled:
                self._advance(sequence, updates)
        ended = {update.sequence for update in updates if update.is_end}
        if ended:
            self._running = [held for held in self._running if held not in ended]
        return updates

    def _admit(self, at_s: float) -> None:
        while (
            self._waiting
            and len(self._running) < self._table.max_sequences
            and self._waiting[0].arrived_s <= at_s
        ):
            self._running.append(self._waiting.popleft())

    def _make_plan(self) -> _Plan:
        plan = _Plan()
        room = self._table.chunk_tokens
        for sequence in self._running:
            if sequence.prefill_left:
                if tokens := min(room, sequence.prefill_left):
                    plan.prefill[sequence] = tokens
                    room -= tokens
            else:
                plan.decode.append(sequence)
                plan.context_tokens += sequence.context_tokens
        plan.duration_s = step_time_s(
            self._table, len(plan.decode), plan.context_tokens, self._table.chunk_tokens - room
        )
        return plan

    def _count(self, plan: _Plan) -> None:
        counters = self.counters
        counters.steps += 1
        counters.busy_s += plan.duration_s
        counters.prefill_tokens += sum(plan.prefill.values())

    def _advance(self, sequence: DeviceSequence, updates: list[Update]) -> None:
        script = sequence.script
        delta = ""
        if not sequence.prefill_only and script.pieces:
            delta = script.pieces[sequence.emitted]
            sequence.emitted += 1
            self.counters.decode_tokens += 1
        done = sequence.prefill_only or sequence.emitted >= len(script.pieces)
        if done or sequence.stream:
            updates.append(Update(sequence, delta, script.output() if done else None))
