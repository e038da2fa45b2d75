"""A trace of the scheduler, which costs nothing while nobody reads it.

A caller asks before it builds an event, so that an unwanted one is never made::

    if FirstOutput in tracer.wanted:
        tracer.emit(FirstOutput(now, request_id, node, engine))
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, TypeVar

from rag_accel.errors import ClosedError, ConfigError
from rag_accel.telemetry.events import EVENT_TYPES, TraceEvent
from rag_accel.telemetry.sinks import Sink

T = TypeVar("T")


class RingBuffer(Generic[T]):
    """The last ``capacity`` items, appended from any thread; older ones are dropped, counted.

    ``append`` takes no lock, so that it may run inside a finalizer or a signal handler that
    interrupted another ``append`` of the same thread.

    Raises:
        ConfigError: if ``capacity`` is below one.
    """

    __slots__ = ("numbered", "numbers")

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ConfigError(
                "a ring buffer holds at least one item", found=capacity, valid="from 1"
            )
        self.numbers = itertools.count(1)
        #: the items held, each with how many had been appended with it
        self.numbered: deque[tuple[int, T]] = deque(maxlen=capacity)

    def append(self, item: T) -> None:
        """Add an item, dropping the oldest if the buffer is full."""
        self.numbered.append((next(self.numbers), item))

    def snapshot(self, newest: int | None = None) -> tuple[T, ...]:
        """Return the items held, or so many of the newest, oldest first. Nothing is removed."""
        held = self.numbered.copy()
        older = max(0, len(held) - (len(held) if newest is None else newest))
        return tuple(item for _, item in islice(held, older, None))

    @property
    def total(self) -> int:
        """Return how many items were ever appended."""
        return max((number for number, _ in self.numbered.copy()), default=0)

    @property
    def dropped(self) -> int:
        """Return how many items are held no more."""
        return self.total - len(self.numbered)

    def __len__(self) -> int:
        return len(self.numbered)


logger = logging.getLogger("rag_accel.telemetry")


#: what makes events of a fact, and the fact
_Unmade = tuple[Callable[[Any], Iterable[TraceEvent]], Any]


@dataclass(slots=True)
class _Feed:
    sink: Sink
    kinds: frozenset[type[TraceEvent]]
    failed: bool = False


class Tracer:
    """The newest events in memory; each is passed on to the sinks that asked for its kind.

    Thread-safe. A failing sink is counted and logged once; it never disturbs the program, the
    ring buffer or the other sinks, and is offered later events all the same.

    Args:
        capacity: events kept in memory; 0 keeps none (option ``trace_events``). Those that one
            ``emit_later`` stands for count as one.
        sinks: sinks that take every kind of event; the tracer closes them.

    Attributes:
        wanted: the kinds of event that are recorded; empty when tracing costs nothing.

    Raises:
        ConfigError: if ``capacity`` is negative.
    """

    __slots__ = ("_closed", "_failures", "_feeds", "_kept", "_lock", "_ring", "_routes", "wanted")

    def __init__(self, capacity: int = 8192, sinks: Iterable[Sink] = ()) -> None:
        if capacity < 0:
            raise ConfigError(
                "bad trace capacity", where="trace_events", found=capacity, valid="from 0"
            )
        self._ring: RingBuffer[TraceEvent | _Unmade] | None = (
            RingBuffer(capacity) if capacity else None
        )
        # Re-entrant: a finalizer that runs while the table changes may emit into a failing sink.
        self._lock = threading.RLock()
        self._closed = False
        self._failures = 0
        self._kept: tuple[TraceEvent, ...] = ()
        self._feeds: tuple[_Feed, ...] = tuple(_Feed(s, frozenset(EVENT_TYPES)) for s in sinks)
        self.wanted: frozenset[type[TraceEvent]] = frozenset()
        self._routes: dict[type[TraceEvent], tuple[_Feed, ...]] = {}
        self._route()

    def emit(self, event: TraceEvent) -> None:
        """Record one event. Never raises an ``Exception``."""
        ring = self._ring
        if ring is not None:
            ring.numbered.append((next(ring.numbers), event))  # as ``ring.append`` does
        for feed in self._routes.get(type(event), ()):
            self._write(feed, event)

    def emit_later(self, make: Callable[[T], Iterable[TraceEvent]], fact: T) -> None:
        """Record the events that ``make(fact)`` gives, made when they are read.

        For frequent facts that are seldom read; ``make`` must not depend on when it is called.
        """
        ring = self._ring
        if ring is not None:
            ring.numbered.append((next(ring.numbers), (make, fact)))  # as ``ring.append`` does
        if self._routes:
            for event in make(fact):
                for feed in self._routes.get(type(event), ()):
                    self._write(feed, event)

    def keep(self, event: TraceEvent) -> None:
        """Record an event that stays readable however many follow; never raises an ``Exception``.

        For the few facts that hold from now on, until ``let_go``. Sinks that come later are told of
        them too.
        """
        with self._lock:
            self._kept = (*self._kept, event)
            feeds = self._routes.get(type(event), ())
        for feed in feeds:
            self._write(feed, event)

    def let_go(self, is_over: Callable[[TraceEvent], bool]) -> None:
        """Forget kept events whose fact holds no longer."""
        with self._lock:
            self._kept = tuple(event for event in self._kept if not is_over(event))

    def add_sink(self, sink: Sink, kinds: Collection[type[TraceEvent]] = EVENT_TYPES) -> None:
        """Pass events of these kinds on to ``sink`` from now on; the tracer will close it.

        Raises:
            ConfigError: if one of ``kinds`` is no event type.
            ClosedError: if the tracer is closed.
        """
        unknown = sorted(kind.__name__ for kind in set(kinds) - set(EVENT_TYPES))
        if unknown:
            raise ConfigError(
                "unknown kind of trace event",
                where=", ".join(unknown),
                valid=", ".join(kind.__name__ for kind in EVENT_TYPES),
            )
        with self._lock:
            if self._closed:
                raise ClosedError("the tracer is closed and takes no sink")
            feed = _Feed(sink, frozenset(kinds))
            self._feeds = (*self._feeds, feed)
            self._route()
            missed = [event for event in self._kept if type(event) in feed.kinds]
        for event in missed:
            self._write(feed, event)

    def remove_sink(self, sink: Sink) -> None:
        """Stop passing events on to ``sink`` without closing it; an unknown one is ignored."""
        with self._lock:
            self._feeds = tuple(feed for feed in self._feeds if feed.sink is not sink)
            self._route()

    def events(self, newest: int | None = None) -> tuple[TraceEvent, ...]:
        """Return the events still in memory: those to keep, then the ``newest``, oldest first."""
        ring = self._ring
        return (*self._kept, *_made(ring.snapshot(newest))) if ring is not None else ()

    @property
    def records(self) -> bool:
        """Tell whether events are kept in memory at all."""
        return self._ring is not None

    @property
    def recorded(self) -> int:
        """Return how many events were ever recorded, as ``capacity`` counts them."""
        return self._ring.total if self._ring is not None else 0

    @property
    def dropped(self) -> int:
        """Return how many events were overwritten by newer ones."""
        return self._ring.dropped if self._ring is not None else 0

    @property
    def sink_failures(self) -> int:
        """Return how often a sink raised."""
        return self._failures

    def close(self) -> None:
        """Close the sinks and record into memory only; further calls do nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            feeds, self._feeds = self._feeds, ()
            self._route()
        for feed in feeds:
            try:
                feed.sink.close()
            except Exception as exc:
                self._count(feed, exc)

    def _route(self) -> None:
        kinds = frozenset(kind for feed in self._feeds for kind in feed.kinds)
        self.wanted = kinds if self._ring is None else frozenset(EVENT_TYPES)
        # A new table replaces the old one at once, so emit needs no lock.
        self._routes = {
            kind: tuple(feed for feed in self._feeds if kind in feed.kinds) for kind in kinds
        }

    def _write(self, feed: _Feed, event: TraceEvent) -> None:
        try:
            feed.sink.write(event)
        except Exception as exc:
            self._count(feed, exc)

    def _count(self, feed: _Feed, exc: Exception) -> None:
        with self._lock:
            self._failures += 1
            first, feed.failed = not feed.failed, True
        if first:
            logger.warning(
                "trace sink %s failed and may miss events; further failures are only counted",
                type(feed.sink).__name__,
                exc_info=exc,
            )


def _made(entries: Iterable[TraceEvent | _Unmade]) -> Iterator[TraceEvent]:
    for entry in entries:
        if isinstance(entry, tuple):
            make, fact = entry
            yield from make(fact)
        else:
            yield entry
