"""Measured gain of a processor that embeds next to accelerators of the same process.

It takes cores and the interpreter from the threads that feed them: where a text costs an
accelerator next to nothing, all embed fewer texts together than the accelerators alone.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import count, cycle, islice

from rag_accel.clock import Clock
from rag_accel.engines.devices.fidelity import embedded, probe_texts
from rag_accel.engines.devices.members import EngineMember, Member

MEASURED_S = 0.25
"""Seconds for which members embed, and longer until each has embedded one batch."""

TURNS = 2
"""Measurements of each way, of which the fastest counts."""

NOISE = 0.05
"""The share by which two measurements of the same may differ."""


def why_slower(member: Member, others: Sequence[Member], clock: Clock, threads: int) -> str | None:
    """Return why a member would slow the others by more than it adds; None if it does not.

    Args:
        member: one that may join.
        others: those that have; all are measured if one is an accelerator of this process.
        clock: measures.
        threads: with how many threads a processor computes.

    Raises:
        Exception: what a member raised.
    """
    if not member.max_threads or not any(map(_is_accelerator_here, others)):
        return None
    alone = together = 0.0
    for _ in range(TURNS):
        alone = max(alone, _texts_per_s(others, clock, threads))
        together = max(together, _texts_per_s([*others, member], clock, threads))
    if together >= (1.0 - NOISE) * alone:
        return None
    return f"it slows the others: {together:.0f} texts/s with it, {alone:.0f} without"


def _is_accelerator_here(member: Member) -> bool:
    device = getattr(getattr(getattr(member, "engine", None), "model", None), "device", None)
    return isinstance(member, EngineMember) and not member.max_threads and device is not None


def _texts_per_s(members: Sequence[Member], clock: Clock, threads: int) -> float:
    """Return the texts per second of members that embed full batches at the same time."""
    runs = [_BatchRun(member, clock, min(threads, member.max_threads)) for member in members]
    are_over = threading.Event()
    workers = [
        threading.Thread(target=run.embed_until, args=(are_over,), daemon=True) for run in runs
    ]
    began = clock.now()
    try:
        for worker in workers:
            worker.start()
        for run in runs:
            run.has_begun.wait()
        are_over.wait(max(0.0, began + MEASURED_S - clock.now()))
    finally:
        are_over.set()
    for worker in workers:
        worker.join()
    for run in runs:
        if run.error is not None:
            raise run.error
    return sum(run.texts / run.seconds for run in runs if run.seconds > 0.0)


class _BatchRun:
    """The batches of one member on a thread of its own."""

    def __init__(self, member: Member, clock: Clock, threads: int) -> None:
        self._member = member
        self._clock = clock
        self._threads = threads
        longest = max(map(member.estimate, probe_texts()))
        self._size = max(1, min(member.max_texts, member.max_tokens // longest))
        #: a first batch has ended
        self.has_begun = threading.Event()
        self.texts = 0
        self.seconds = 0.0
        self.error: Exception | None = None

    def embed_until(self, are_over: threading.Event) -> None:
        source, numbers, began = cycle(probe_texts()), count(), self._clock.now()
        try:
            while not (self.has_begun.is_set() and are_over.is_set()):
                # None of them twice: members may keep vectors.
                texts = [f"{text} {next(numbers)}" for text in islice(source, self._size)]
                embedded(self._member, texts, "query", self._threads)
                self.texts += len(texts)
                self.seconds = self._clock.now() - began
                self.has_begun.set()
        except Exception as error:
            self.error = error
        finally:
            self.has_begun.set()
