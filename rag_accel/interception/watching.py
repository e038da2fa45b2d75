"""Leaf calls of programs that run without the scheduler, watched as events of a trace.

Nothing is scheduled, shared or cached, and no model is adopted. The calls that composites would
make side by side are made one by one, as the framework makes them, and are known as independent.
A call that has another leaf called is cut into pieces, so that each moment belongs to one leaf.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, TypeVar

from rag_accel.accelerator import Accelerator
from rag_accel.clock import MonotonicClock
from rag_accel.engine_api import PrimitiveKind
from rag_accel.interception.identity import scoped
from rag_accel.interception.leaf_call import NotedCall
from rag_accel.interception.leaf_table import (
    Framework,
    LeafMethod,
    leaf_class,
    leaf_methods,
    why_not,
)
from rag_accel.profile.prediction import CallPlace, Runner, WatchedCall
from rag_accel.telemetry import TraceEvent
from rag_accel.telemetry.events import NodeDispatched, NodeFinished, RequestEnded, RequestStarted

C = TypeVar("C")

MOST_CALLS = 2000
"""Calls of a request that are recorded; further calls count as the program's own time."""

MOST_CALLS_IN_ALL = 10_000
"""Calls after which no further request is recorded."""

TIMED: frozenset[str] = frozenset({"plain", "coroutine"})
"""Flavours of methods whose work is over once they return; a stream's is done as it is read."""

_OWN = "they count as the program's own code"
_COMPUTED = frozenset({PrimitiveKind.SEARCHING, PrimitiveKind.RERANKING})


@dataclass(slots=True)
class TimedCall:
    """A leaf call, with the leaf calls made inside of it."""

    name: str
    kind: str
    known: WatchedCall
    began_s: float
    ended_s: float = math.inf
    inside: list[TimedCall] = field(default_factory=list["TimedCall"])

    def pieces(self, over_s: float) -> Iterator[tuple[float, float, TimedCall, bool]]:
        """Yield begin, end and call of each piece until a moment, and whether it is a rest."""
        at, ended_s, is_rest = self.began_s, min(self.ended_s, over_s), False
        for inner in (*self.inside, None):
            until = min(ended_s, inner.began_s if inner else ended_s)
            if until > at or not is_rest:
                yield at, until, self, is_rest
            is_rest = True
            if inner is not None:
                yield from inner.pieces(over_s)
                at = max(at, inner.ended_s)


@dataclass(slots=True)
class WatchedRequest:
    """A request under way, with its outermost leaf calls."""

    watch: Watch
    num_calls: int = 0
    inside: list[TimedCall] = field(default_factory=list[TimedCall])


#: The request whose code executes in this context.
watched_request: ContextVar[WatchedRequest | None] = ContextVar("rag_accel_watched", default=None)
_around: ContextVar[TimedCall | None] = ContextVar("rag_accel_watched_call", default=None)
#: Why the independent calls made next may not run side by side; empty if they may.
obstacle_ahead: ContextVar[str] = ContextVar("rag_accel_watched_obstacle", default="")
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
        left_out: why calls and requests are not timed, once for each.
    """

    accelerator: Accelerator
    computed_here: frozenset[int] = frozenset()
    events: list[TraceEvent] = field(default_factory=list[TraceEvent])
    calls: dict[str, WatchedCall] = field(default_factory=dict[str, WatchedCall])
    reasons: dict[str, str] = field(default_factory=dict[str, str])
    left_out: list[str] = field(default_factory=list[str])
    _clock: MonotonicClock = field(default_factory=MonotonicClock)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))
    #: objects by their ids, which are no other's as long as they live, with their reasons
    _seen: dict[int, tuple[Any, str]] = field(default_factory=dict[int, tuple[Any, str]])

    def note(self, call: NotedCall) -> None:
        """Count a call that cannot be timed."""
        leaves = leaf_methods(type(call.obj))
        is_timed = any(leaf.name == call.method and leaf.flavour in TIMED for leaf in leaves)
        if watched_request.get() is None or not is_timed:
            self.left_out.append(f"calls were streamed, or made in threads without context: {_OWN}")

    @contextmanager
    def request(self) -> Iterator[None]:
        """Watch a block as one request, which fails if the block raises."""
        if len(self.calls) >= MOST_CALLS_IN_ALL:
            self.left_out.append(f"requests after {MOST_CALLS_IN_ALL} calls are not in the tables")
            yield
            return
        request, number = WatchedRequest(self), next(self._numbers)
        events: list[TraceEvent] = [RequestStarted(self._clock.now(), number, "program")]
        outcome = "failed"
        try:
            with scoped(watched_request, request):
                yield
            outcome = "done"
        finally:
            now = self._clock.now()
            pieces = [piece for call in tuple(request.inside) for piece in call.pieces(now)]
            for began_s, ended_s, call, is_rest in sorted(pieces, key=lambda piece: piece[0]):
                name, engine = call.name, call.known.engine
                if is_rest:
                    name = f"leaf{next(self._numbers)}"
                    self.calls[name] = replace(call.known, is_rest=True)
                events.append(NodeDispatched(began_s, number, name, engine, 0.0, call.kind))
                events.append(NodeFinished(ended_s, number, name, engine, "done"))
            self.events += [*events, RequestEnded(now, number, outcome)]

    @contextmanager
    def leaf(
        self, request: WatchedRequest, obj: Any, leaf: LeafMethod, values: Iterable[Any]
    ) -> Iterator[None]:
        """Watch a block as a leaf call of a request."""
        if request.num_calls >= MOST_CALLS:
            self.left_out.append(f"calls beyond the first {MOST_CALLS} of a request: {_OWN}")
            yield
            return
        request.num_calls += 1
        outer, known, number = _around.get(), leaf_class(type(obj)), next(self._numbers)
        name, first = f"leaf{number}", number if outer is None else outer.known.call
        runner, asked = self._runner(obj, leaf.kind, known.engine), _asked(known.framework, values)
        self.calls[name] = WatchedCall(first, known.engine, runner, _places.get(), asked)
        call = TimedCall(name, str(leaf.kind), self.calls[name], self._clock.now())
        (request if outer is None else outer).inside.append(call)
        try:
            with scoped(_around, call):
                yield
        finally:
            call.ended_s = self._clock.now()

    def placed(self, calls: Iterable[C], at_once: int) -> Generator[C]:
        """Yield independent calls, ``at_once`` of which could run together, each to be made."""
        group, around, obstacle = next(self._numbers), _places.get(), obstacle_ahead.get()
        obstacle_ahead.set("")
        for place, call in enumerate(calls):
            with scoped(_places, (*around, CallPlace(group, place, at_once, obstacle))):
                yield call

    def _runner(self, obj: Any, kind: PrimitiveKind, engine: str) -> Runner:
        if id(obj) not in self._seen:
            self._seen[id(obj)] = obj, why_not(obj, self.accelerator)
        if reason := self._seen[id(obj)][1]:
            self.reasons[engine] = reason
            return "caller"
        if id(obj) in self.computed_here or kind in _COMPUTED:
            return "engine"
        return "cache" if kind is PrimitiveKind.EMBEDDING else "caller"


def _asked(framework: Framework, values: Iterable[Any]) -> int | None:
    """Return a hash of the texts in a call's arguments; None if there are none."""
    several = (each for value in values for each in (value if isinstance(value, list) else [value]))
    texts = (each if isinstance(each, str) else framework.question(each) for each in several)
    found = tuple(text for text in texts if text)
    return hash(found) if found else None
