"""How much of a program passes the scheduler: what ``coverage()`` of each framework returns.

A meter learns of calls from the wrappers, and of what is called past them from its framework.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from rag_accel.interception.covered_calls import CoveredCalls, as_text
from rag_accel.interception.leaf_call import NotedCall, meters
from rag_accel.interception.option_reach import OptionReach, as_lines
from rag_accel.interception.patches import patches


@dataclass(frozen=True, slots=True)
class CoverageRow:
    """The leaf calls of one kind.

    Args:
        kind: what was called.
        seen: all calls.
        queued: those that waited for their turn, or whose work did on an engine of ours.
        admitted: those that began at once and were reported.
        cached: those that a cache of the framework's answered, so that nothing was to be done.
    """

    kind: str
    seen: int
    queued: int
    admitted: int
    cached: int = 0

    @property
    def scheduled(self) -> int:
        """Return the calls that the scheduler knows of."""
        return self.queued + self.admitted

    @property
    def passed_by(self) -> int:
        """Return the calls that the scheduler never heard of, though there was work to do."""
        return self.seen - self.scheduled - self.cached


class Meter(Protocol):
    """What is told of leaf calls."""

    def note(self, call: NotedCall) -> None:
        """Learn of a leaf call."""
        ...

    def rows(self) -> list[CoverageRow]:
        """Return one row per kind of leaf that was called, sorted by kind."""
        ...

    def calls(self) -> tuple[CoveredCalls, ...]:
        """Return the calls by class and method."""
        ...


class Coverage:
    """How much of a program passes the scheduler, and which options of its accelerator reach it.

    A context manager: calls made in its blocks are counted, in their contexts and those copied from
    them; calls in threads that carry no context at all count for the block opened last. Without a
    block it is a view of what is known of the program before it runs. Thread-safe but for its
    blocks, which are one thread's.

    Args:
        meter: counts.
        open_meter: returns a block whose calls it is told of.
        reach: returns how far options reach; empty if no program was given.
    """

    def __init__(
        self,
        meter: Meter,
        open_meter: Callable[[], AbstractContextManager[object]],
        reach: Callable[[], tuple[OptionReach, ...]] = tuple,
    ) -> None:
        self._meter = meter
        self._open_meter = open_meter
        self._reach = reach
        self._blocks: list[AbstractContextManager[object]] = []

    def __enter__(self) -> Coverage:
        block = self._open_meter()
        block.__enter__()
        self._blocks.append(block)
        return self

    def __exit__(self, *raised: object) -> None:
        self._blocks.pop().__exit__(None, None, None)

    @property
    def calls(self) -> tuple[CoveredCalls, ...]:
        """Return the calls by class and method, those that passed by last, with the reason."""
        return self._meter.calls()

    @property
    def scheduled(self) -> int:
        """Return how many calls had their work queued on an owned engine."""
        return sum(call.scheduled for call in self.calls)

    @property
    def borrowed(self) -> int:
        """Return how many calls the scheduler admitted and their caller ran."""
        return sum(call.borrowed for call in self.calls)

    @property
    def passed_by(self) -> int:
        """Return how many calls the framework ran without the scheduler."""
        return sum(call.passed_by for call in self.calls)

    @property
    def options(self) -> tuple[OptionReach, ...]:
        """Return which parts of the program read each option; empty without a program."""
        return self._reach()

    def rows(self) -> list[CoverageRow]:
        """Return the counts by kind of leaf."""
        return self._meter.rows()

    def __str__(self) -> str:
        return "\n".join([*as_text(self.calls), *as_lines(self.options)])


M = TypeVar("M", bound=Meter)


class OpenMeters(Generic[M]):
    """The meters of one kind that are open, each for its context and those copied from it.

    Calls in threads that carry no context at all count for the meter opened last.
    """

    def __init__(self, name: str) -> None:
        self._lock = threading.Lock()
        self._open: list[M] = []
        #: the meter of a context
        self.current: ContextVar[M | None] = ContextVar(name, default=None)

    @contextmanager
    def opened(self, meter: M) -> Iterator[M]:
        """Have a meter told of every leaf call made in the block.

        Leaf methods are patched meanwhile, so that calls of no accelerated program are told, too.
        """
        use = patches.acquire()
        try:
            token = self.current.set(meter)
            with self._lock:
                if not self._open:
                    meters.append(self._note)
                self._open.append(meter)
            try:
                yield meter
            finally:
                with self._lock:
                    self._open.remove(meter)
                    if not self._open:
                        meters.remove(self._note)
                self.current.reset(token)
        finally:
            patches.release(use)

    def here(self) -> M | None:
        """Return the meter that a call made here counts for."""
        meter = self.current.get()
        if meter is None and not len(copy_context()):
            meter = next(iter(self._open[-1:]), None)
        return meter

    def _note(self, call: NotedCall) -> None:
        meter = self.here()
        if meter is not None:
            meter.note(call)
