"""How much of a program passes the scheduler: rows of counted calls, and meters that are open.

A meter learns of calls from the wrappers, and of what is called past them from its framework.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from rag_accel.interception.leaf_call import Way, meters


@dataclass(frozen=True, slots=True)
class CoverageRow:
    """The leaf calls of one kind.

    Args:
        kind: what was called.
        seen: all calls.
        queued: those that waited for their turn.
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


def as_table(rows: Sequence[CoverageRow]) -> str:
    """Return rows as text, one a line under a heading."""
    lines = [f"{'leaf':<16}{'seen':>8}{'queued':>8}{'admitted':>10}{'passed by':>11}"]
    lines += [
        f"{row.kind:<16}{row.seen:>8}{row.queued:>8}{row.admitted:>10}{row.passed_by:>11}"
        for row in rows
    ]
    return "\n".join(lines)


class Meter(Protocol):
    """What is told of leaf calls."""

    def note(self, obj: Any, args: Sequence[Any], way: Way | None) -> None:
        """Learn of a leaf call, and how it passed the scheduler if it did."""
        ...


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
        """Have a meter told of every leaf call made in the block."""
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

    def here(self) -> M | None:
        """Return the meter that a call made here counts for."""
        meter = self.current.get()
        if meter is None and not len(copy_context()):
            meter = next(iter(self._open[-1:]), None)
        return meter

    def _note(self, obj: Any, args: Sequence[Any], way: Way | None) -> None:
        meter = self.here()
        if meter is not None:
            meter.note(obj, args, way)
