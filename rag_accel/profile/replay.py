"""Estimates of what another order of the recorded primitives would have taken: ``saved_ms``.

The scheduler's own core plays the recording again on a clock that only counts: engines take as much
as they did, and every step and call takes the time that was recorded. So what is compared is two
runs of one list scheduler, not a run with a formula.

What is assumed:

- A primitive takes as long as it took, whatever runs at the same time; a step takes as long as
  the longest of its members took. So larger batches are free, up to the engine's capacity.
- An engine that keeps work from step to step has as many places as its capacity, and a newcomer
  starts at once if one is free; really it waits for the step that runs.
- Time in which nothing of a request was ready (admission, the program's own code between two
  calls) passes again as it did.
- Who comes when nobody is there finds idle engines whatever was before: whoever asks one question
  after the other would have asked the next one later, had an answer taken longer. Requests that
  live at the same time arrive when they did.
- Waiting in queues is not taken over; it follows from the engines. Only the requests of the
  recording are there, and only those that succeeded. Engines never wait for a newcomer on purpose.
- An engine of which nothing is known takes any number of calls.

So playing a recording again as it was gives its makespans, but for rounding: of one request whose
steps did not fail, on engines that keep no work between steps; and of several if, besides, no
engine waited on purpose and no step began with requests that arrived one after the other.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count

from rag_accel.engine_api.kinds import PrimitiveKind
from rag_accel.errors import ConfigError, GraphError
from rag_accel.graph.nodes import TURN_MARK, listed, suggestion
from rag_accel.graph.order import depths, topological
from rag_accel.profile.recording import RecordedPrimitive, RecordedRequest, Recording
from rag_accel.scheduler.commands import Command, EndNode, StartCall, StartStep
from rag_accel.scheduler.messages import (
    BorrowedEngineAdded,
    CallEnded,
    EngineName,
    Event,
    NodeKey,
    NodeReport,
    NodeSpec,
    OwnedEngineAdded,
    RequestArrived,
    RequestId,
    StepEnded,
)
from rag_accel.scheduler.state import CoreOptions, SchedulerState
from rag_accel.scheduler.transitions import handle
from rag_accel.telemetry.events import RequestId as RecordedId

Dependencies = Mapping[str, Iterable[str]]
"""What each primitive waits for, by name: ``{p.name: p.after for p in graph.primitives}``."""

_BEFORE = f"{TURN_MARK}before "
_OPTIONS = CoreOptions(
    max_requests=1 << 62, max_batch=1 << 62, batch_wait_s=0.0, step_timeout_s=math.inf
)


@dataclass(frozen=True, slots=True)
class PassSaving:
    """The time a pass saves a request of a graph.

    Args:
        name: the pass.
        saved_ms: estimated by replay, negative for a loss; None where the pass does not only
            change what waits for what, so that the recording tells nothing of the other way.
    """

    name: str
    saved_ms: float | None


@dataclass(frozen=True, slots=True)
class Replay:
    """A recording played again; ``makespan_s`` by request, ``ended_s`` by request and name."""

    makespan_s: Mapping[RecordedId, float]
    ended_s: Mapping[tuple[RecordedId, str], float]


def saved_ms(trace: Recording, before: Dependencies, after: Dependencies) -> float:
    """Return how many milliseconds a change of dependencies saves a request, on average.

    Args:
        trace: a recording of requests that succeeded, run with any dependencies.
        before, after: dependencies of primitives by name. A primitive that is not named keeps the
            recorded ones, and one that did not run in a request is not waited for in it.

    Returns:
        The mean over requests with a named primitive; negative if the change makes them later.

    Raises:
        ConfigError: if the recording holds no such request, a dependency names a primitive that
            it does not know, or primitives wait for each other.
    """
    named = {*before, *after}
    concerned = [
        request.id
        for request in trace.done
        if any(primitive.name in named for primitive in request.primitives)
    ]
    if not concerned:
        raise ConfigError(
            "nothing to compare: no recorded request ran any of these primitives",
            where="saved_ms",
            found=listed(sorted(named)),
            valid=listed(_known(trace)),
            hint="record requests of this graph first",
        )
    was, would_be = replay(trace, before), replay(trace, after)
    saved = [
        was.makespan_s[request_id] - would_be.makespan_s[request_id] for request_id in concerned
    ]
    return 1000 * sum(saved) / len(saved)


def replay(trace: Recording, dependencies: Dependencies | None = None) -> Replay:
    """Play the requests that succeeded again, with these dependencies or the recorded ones.

    Raises:
        ConfigError: if a dependency names a primitive that the recording does not know, or
            primitives wait for each other.
    """
    wanted = {name: tuple(others) for name, others in (dependencies or {}).items()}
    _check(trace, wanted)
    makespan_s: dict[RecordedId, float] = {}
    ended_s: dict[tuple[RecordedId, str], float] = {}
    for period in _busy_periods(trace.done):
        player = _Player(replace(trace, requests=tuple(period)))
        for number, request in enumerate(period, start=1):
            player.bring(RequestId(number), request, wanted)
        player.play()
        played = player.result()
        makespan_s.update(played.makespan_s)
        ended_s.update(played.ended_s)
    return Replay(makespan_s, ended_s)


def _busy_periods(done: Iterable[RecordedRequest]) -> list[list[RecordedRequest]]:
    """Return the requests between two moments at which none lived, as they arrived."""
    until = -math.inf
    periods: list[list[RecordedRequest]] = []
    for request in sorted(done, key=lambda request: request.arrived_s):
        if request.arrived_s >= until:
            periods.append([])
        periods[-1].append(request)
        until = max(until, request.ended_s)
    return periods


def _known(trace: Recording) -> list[str]:
    return sorted({primitive.name for request in trace.done for primitive in request.primitives})


def _check(trace: Recording, wanted: Mapping[str, tuple[str, ...]]) -> None:
    known = dict.fromkeys(_known(trace))
    for name, others in wanted.items():
        for other in others:
            if other not in known and other not in wanted:
                raise ConfigError(
                    "a dependency names a primitive that was not recorded",
                    where=name,
                    found=other,
                    valid=listed(known),
                    hint=suggestion(other, known),
                )


@dataclass(slots=True)
class _Played:
    """One request while it is played."""

    recorded: RecordedRequest
    by_name: dict[str, RecordedPrimitive]
    #: between the end of its last primitive and its own
    tail_s: float
    last_s: float
    ended_s: dict[str, float] = field(default_factory=dict[str, float])


class _Player:
    """A scheduler core driven through the recorded arrivals in the order of time."""

    def __init__(self, trace: Recording) -> None:
        self._state = SchedulerState(_OPTIONS)
        self._now = min((request.arrived_s for request in trace.done), default=0.0)
        self._coming: list[tuple[float, int, Event]] = []
        self._numbers = count()
        self._played: dict[RequestId, _Played] = {}
        # Longer than every other name, so it is none of them.
        self._outside = EngineName(f"outside {' '.join(trace.engines)}")
        self._tell(BorrowedEngineAdded(self._outside))
        for engine in trace.engines.values():
            name, capacity = EngineName(engine.name), engine.capacity
            if engine.owned and not engine.stepped:
                self._tell(OwnedEngineAdded(name, capacity or _OPTIONS.max_batch))
            else:
                self._tell(BorrowedEngineAdded(name, capacity))

    def bring(
        self, id: RequestId, request: RecordedRequest, wanted: Mapping[str, tuple[str, ...]]
    ) -> None:
        """Let a request arrive when it did."""
        by_name = {primitive.name: primitive for primitive in request.primitives}
        after = {
            name: tuple(other for other in wanted.get(name, primitive.after) if other in by_name)
            for name, primitive in by_name.items()
        }
        depth = _depths(after, request) if wanted else {o.name: o.depth for o in by_name.values()}
        last_s = max(
            (primitive.ended_s for primitive in by_name.values()), default=request.arrived_s
        )
        tail_s = request.ended_s - last_s
        self._played[id] = _Played(request, by_name, tail_s, request.arrived_s)
        specs = [
            spec
            for name, primitive in by_name.items()
            for spec in self._specs(
                primitive, after[name], depth[name], _lag_s(request, primitive, by_name)
            )
        ]
        self._add(request.arrived_s, RequestArrived(id, tuple(specs), request.arrived_s))

    def play(self) -> None:
        """Let everything happen that is to come."""
        while self._coming:
            self._now, _, event = heapq.heappop(self._coming)
            together = bool(self._coming) and self._coming[0][0] == self._now
            self._tell(event, more=together)

    def result(self) -> Replay:
        makespans = {
            played.recorded.id: played.last_s + played.tail_s - played.recorded.arrived_s
            for played in self._played.values()
        }
        ended = {
            (played.recorded.id, name): at
            for played in self._played.values()
            for name, at in played.ended_s.items()
        }
        return Replay(makespans, ended)

    def _tell(self, event: Event, more: bool = False) -> None:
        for command in handle(self._state, event, self._now, more=more):
            self._carry_out(command)

    def _add(self, at: float, event: Event) -> None:
        heapq.heappush(self._coming, (at, next(self._numbers), event))

    def _carry_out(self, command: Command) -> None:
        if isinstance(command, StartStep):
            members = tuple(self._state.engines[command.engine].running)
            took_s = max(self._took_s(key) for key in members)
            reports = tuple(NodeReport(key, "final") for key in members)
            ended = StepEnded(command.engine, command.step, reports, took_s)
            self._add(self._now + took_s, ended)
        elif isinstance(command, StartCall):
            ended = CallEnded(command.node, command.engine, ok=True)
            self._add(self._now + self._took_s(command.node), ended)
        elif isinstance(command, EndNode):
            played = self._played[command.node.request]
            played.last_s = self._now
            if command.node.node in played.by_name:
                played.ended_s[command.node.node] = self._now

    def _specs(
        self, primitive: RecordedPrimitive, after: tuple[str, ...], depth: int, lag_s: float
    ) -> list[NodeSpec]:
        """Return the primitive, and before it the time in which nothing of it was ready."""
        specs: list[NodeSpec] = []
        kind = PrimitiveKind.FUNCTION  # the core treats all kinds alike
        if lag_s > 0:
            lag = NodeSpec(_BEFORE + primitive.name, self._outside, kind, after, depth + 1)
            specs.append(lag)
            after = (lag.name,)
        specs.append(
            NodeSpec(
                primitive.name, EngineName(primitive.engine), kind, after, depth, primitive.size
            )
        )
        return specs

    def _took_s(self, key: NodeKey) -> float:
        played = self._played[key.request]
        primitive = played.by_name.get(key.node)
        if primitive is not None:
            return primitive.running_s
        later = played.by_name[key.node.removeprefix(_BEFORE)]
        return _lag_s(played.recorded, later, played.by_name)


def _lag_s(
    request: RecordedRequest, primitive: RecordedPrimitive, by_name: Mapping[str, RecordedPrimitive]
) -> float:
    ends = [by_name[name].ended_s for name in primitive.after if name in by_name]
    return primitive.ready_s - max(ends, default=request.arrived_s)


def _depths(after: Mapping[str, tuple[str, ...]], request: RecordedRequest) -> dict[str, int]:
    """Return the longest remaining path of each primitive, in primitives."""
    successors: dict[str, list[str]] = {name: [] for name in after}
    for name, others in after.items():
        for other in dict.fromkeys(others):
            successors[other].append(name)
    try:
        order = topological(successors)
    except GraphError as error:
        raise ConfigError(
            "primitives would wait for each other",
            where=f"request {request.id}",
            found=error.found,
            valid="dependencies without a circle",
        ) from error
    return depths({name: successors[name] for name in order})
