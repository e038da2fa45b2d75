"""Leaf calls of programs that run without the scheduler, watched as events of a trace.

Nothing is scheduled, shared or cached, and no model is adopted. The calls that composites would
make side by side are made one by one, as the framework makes them, and are known as independent.
A call that has another leaf called is cut into pieces, so that each moment belongs to one leaf.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, TypeVar

from rag_accel.accelerator import Accelerator
from rag_accel.clock import MonotonicClock
from rag_accel.engine_api import PrimitiveKind
from rag_accel.interception.covered_calls import why_not
from rag_accel.interception.identity import scoped
from rag_accel.interception.leaf_call import NotedCall
from rag_accel.interception.leaf_table import Framework, LeafMethod, leaf_class, leaf_methods
from rag_accel.profile.prediction import CallPlace, Runner, WatchedCall
from rag_accel.recognition.weak_maps import WeakIdDict
from rag_accel.telemetry.events import (
    NodeDispatched,
    NodeFinished,
    RequestEnded,
    RequestStarted,
    TraceEvent,
)

T = TypeVar("T")

MOST_CALLS = 2000
"""Calls of a request that are recorded; further calls count as the program's own time."""

MOST_CALLS_IN_ALL = 100_000
"""Calls after which no further request is recorded."""

TIMED: frozenset[str] = frozenset({"plain", "coroutine"})
"""Flavours of methods whose work is over once they return; a stream's is done as it is read."""

_COMPUTED = frozenset({PrimitiveKind.SEARCHING, PrimitiveKind.RERANKING})


@dataclass(slots=True)
class WatchedRequest:
    """A request under way."""

    watch: Watch
    id: int
    num_calls: int = 0
    is_over: bool = False


@dataclass(slots=True)
class _OpenCall:
    """A leaf call under way; while another leaf runs inside of it, it has no piece."""

    request: WatchedRequest
    kind: str
    known: WatchedCall
    num_inside: int = 0
    is_over: bool = False
    #: name and begin of the piece that runs
    piece: tuple[str, float] | None = None


#: The request whose code executes in this context.
watched_request: ContextVar[WatchedRequest | None] = ContextVar("rag_accel_watched", default=None)
_around: ContextVar[_OpenCall | None] = ContextVar("rag_accel_watched_call", default=None)
#: why the calls that are about to be made may not run side by side
_obstacle: ContextVar[str] = ContextVar("rag_accel_watched_obstacle", default="")
_places: ContextVar[tuple[CallPlace, ...]] = ContextVar("rag_accel_watched_places", default=())


@dataclass(slots=True)
class Watch:
    """The requests of a plain program and their leaf calls. Thread-safe.

    Args:
        accelerator: the accelerator that the program would have; only its options are read.
        computed_here: ids of objects that its engines would compute with.

    Attributes:
        events: what happened, as a profile reads it.
        calls: by the names of the events' nodes.
        reasons: why no engine runs the objects of a class, by its engine's name.
        num_left_out: calls beyond ``MOST_CALLS`` of a request.
        num_untimed: streams, and calls in threads that carry no context.
        num_requests_left_out: requests that came after ``MOST_CALLS_IN_ALL``.
    """

    accelerator: Accelerator
    computed_here: frozenset[int] = frozenset()
    events: list[TraceEvent] = field(default_factory=list[TraceEvent])
    calls: dict[str, WatchedCall] = field(default_factory=dict[str, WatchedCall])
    reasons: dict[str, str] = field(default_factory=dict[str, str])
    num_left_out: int = 0
    num_untimed: int = 0
    num_requests_left_out: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _clock: MonotonicClock = field(default_factory=MonotonicClock)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))
    _runners: WeakIdDict[Runner] = field(default_factory=WeakIdDict[Runner])

    def note(self, call: NotedCall) -> None:
        """Count a call that cannot be timed: a stream, or of no known request."""
        flavours = (
            leaf.flavour for leaf in leaf_methods(type(call.obj)) if leaf.name == call.method
        )
        if watched_request.get() is None or next(flavours, "") not in TIMED:
            with self._lock:
                self.num_untimed += 1

    def forget_requests(self) -> None:
        """Forget the requests, but not which calls they made: equal ones may be cached."""
        self.events.clear()
        self.num_left_out = self.num_untimed = self.num_requests_left_out = 0

    @contextmanager
    def request(self) -> Iterator[None]:
        """Watch a block as one request, which fails if the block raises."""
        if len(self.calls) >= MOST_CALLS_IN_ALL:
            self.num_requests_left_out += 1
            yield
            return
        request = WatchedRequest(self, next(self._numbers))
        self.events.append(RequestStarted(self._clock.now(), request.id, "program"))
        outcome = "failed"
        try:
            with scoped(watched_request, request):
                yield
            outcome = "done"
        finally:
            request.is_over = True
            self.events.append(RequestEnded(self._clock.now(), request.id, outcome))

    @contextmanager
    def leaf(
        self,
        request: WatchedRequest,
        obj: Any,
        leaf: LeafMethod,
        values: Iterable[Any],
        block: AbstractContextManager[None],
    ) -> Iterator[None]:
        """Watch a leaf call, which runs in ``block``."""
        outer, known = _around.get(), leaf_class(type(obj))
        call = WatchedCall(
            next(self._numbers) if outer is None else outer.known.call,
            known.engine,
            self._runner(obj, leaf.kind),
            _places.get(),
            _asked(known.framework, values),
        )
        opened = _OpenCall(request, str(leaf.kind), call)
        ok = False
        self._enter(outer, opened)
        try:
            with block, scoped(_around, opened):
                yield
            ok = True
        finally:
            self._leave(outer, opened, ok)

    def note_obstacle(self, obstacle: str) -> None:
        """Note why the calls made in order next may not run side by side; empty if they may."""
        _obstacle.set(obstacle)

    def in_order(self, calls: Sequence[Callable[[], T]], at_once: int) -> list[T]:
        """Make independent calls one by one, of which ``at_once`` could run together."""
        return [self._placed(place, call) for place, call in self._group(calls, at_once)]

    async def ain_order(self, calls: Sequence[Callable[[], Awaitable[T]]], at_once: int) -> list[T]:
        """Do as ``in_order`` with coroutines."""
        values: list[T] = []
        for place, call in self._group(calls, at_once):
            with scoped(_places, place):
                values.append(await call())
        return values

    def _group(
        self, calls: Sequence[Callable[[], T]], at_once: int
    ) -> Iterator[tuple[tuple[CallPlace, ...], Callable[[], T]]]:
        group, around, obstacle = next(self._numbers), _places.get(), _obstacle.get()
        _obstacle.set("")
        for place, call in enumerate(calls):
            yield (*around, CallPlace(group, place, at_once, obstacle)), call

    def _placed(self, places: tuple[CallPlace, ...], call: Callable[[], T]) -> T:
        with scoped(_places, places):
            return call()

    def _enter(self, outer: _OpenCall | None, opened: _OpenCall) -> None:
        with self._lock:
            if outer is not None:
                outer.num_inside += 1
                self._end(outer, ok=True)
            self._begin(opened, opened.known)

    def _leave(self, outer: _OpenCall | None, opened: _OpenCall, ok: bool) -> None:
        with self._lock:
            self._end(opened, ok)
            opened.is_over = True
            if outer is not None:
                outer.num_inside -= 1
                if not (outer.num_inside or outer.is_over):
                    self._begin(outer, replace(outer.known, is_rest=True))

    def _begin(self, call: _OpenCall, known: WatchedCall) -> None:
        request = call.request
        if request.is_over:  # what it left behind is no part of its time
            return
        if request.num_calls >= MOST_CALLS:
            self.num_left_out += not known.is_rest
            return
        request.num_calls += 1
        name, now = f"leaf{next(self._numbers)}", self._clock.now()
        self.calls[name] = known
        call.piece = (name, now)
        self.events.append(NodeDispatched(now, request.id, name, known.engine, 0.0, call.kind))

    def _end(self, call: _OpenCall, ok: bool) -> None:
        if call.piece is None:
            return
        (name, began), now, call.piece = call.piece, self._clock.now(), None
        outcome = "done" if ok else "failed"
        ended = NodeFinished(now, call.request.id, name, call.known.engine, outcome, now - began)
        self.events.append(ended)

    def _runner(self, obj: Any, kind: PrimitiveKind) -> Runner:
        try:
            known = self._runners.get(obj)
            return self._runners.add(obj, self._look_at(obj, kind)) if known is None else known
        except TypeError:  # without weak references
            return self._look_at(obj, kind)

    def _look_at(self, obj: Any, kind: PrimitiveKind) -> Runner:
        reason = why_not(obj, self.accelerator)
        if reason:
            self.reasons[leaf_class(type(obj)).engine] = reason
            return "caller"
        if id(obj) in self.computed_here or kind in _COMPUTED:
            return "engine"
        return "cache" if kind is PrimitiveKind.EMBEDDING else "caller"


def _asked(framework: Framework, values: Iterable[Any]) -> int | None:
    """Return a hash of the texts in a call's arguments; None if there are none."""
    texts = [text for value in values for text in _texts(framework, value)]
    return hash(tuple(texts)) if texts else None


def _texts(framework: Framework, value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        yield from (text for text in value if isinstance(text, str))
    elif question := framework.question(value):
        yield question
