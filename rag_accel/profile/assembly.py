"""Assembly of trace events into a recording: ``assemble(events) -> Recording``."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from operator import attrgetter

from rag_accel.profile.recording import (
    LEAF,
    RecordedEngine,
    RecordedPrimitive,
    RecordedRequest,
    RecordedStep,
    Recording,
)
from rag_accel.telemetry.events import (
    EngineJoined,
    Member,
    NodeDispatched,
    NodeFinished,
    RequestEnded,
    RequestId,
    RequestStarted,
    SingleFlightJoined,
    StepEnded,
    StepStarted,
    TraceEvent,
)

_Primitives = Sequence[RecordedPrimitive]


def assemble(events: Iterable[TraceEvent], dropped: int = 0) -> Recording:
    """Return the recording of one accelerator's events, some of which may be missing."""
    seen = _Seen()
    for event in events:
        seen.take(event)
    primitives: dict[RequestId, list[RecordedPrimitive]] = {}
    for (request, _), began in seen.began.items():
        primitives.setdefault(request, []).append(_primitive(began, seen))
    requests = [
        _request(id, primitives.get(id, ()), seen)
        for id in dict.fromkeys([*seen.started, *primitives])
    ]
    used = (primitive.engine for several in primitives.values() for primitive in several)
    engines = {name: RecordedEngine(name) for name in used} | seen.engines
    return Recording(
        tuple(sorted(requests, key=lambda request: (request.arrived_s, f"{request.id:>20}"))),
        tuple(_step(started, seen) for started in seen.steps.values()),
        dict(sorted(engines.items())),
        dropped,
    )


@dataclass(slots=True)
class _Seen:
    """Events sorted by their subject."""

    engines: dict[str, RecordedEngine] = field(default_factory=dict[str, RecordedEngine])
    started: dict[RequestId, RequestStarted] = field(
        default_factory=dict[RequestId, RequestStarted]
    )
    ended: dict[RequestId, RequestEnded] = field(default_factory=dict[RequestId, RequestEnded])
    began: dict[Member, NodeDispatched | SingleFlightJoined] = field(
        default_factory=dict[Member, NodeDispatched | SingleFlightJoined]
    )
    finished: dict[Member, NodeFinished] = field(default_factory=dict[Member, NodeFinished])
    #: of each request, the node that ended last
    last: dict[RequestId, NodeFinished] = field(default_factory=dict[RequestId, NodeFinished])
    steps: dict[tuple[str, int], StepStarted] = field(
        default_factory=dict[tuple[str, int], StepStarted]
    )
    step_ends: dict[tuple[str, int], StepEnded] = field(
        default_factory=dict[tuple[str, int], StepEnded]
    )
    last_s: float = 0.0

    def take(self, event: TraceEvent) -> None:
        self.last_s = max(self.last_s, event.time_s)
        match event:
            case EngineJoined():
                engine = RecordedEngine(event.engine, event.owned, event.stepped, event.capacity)
                self.engines[event.engine] = engine
            case RequestStarted():
                # A leaf that comes after its program has left seems to open the request again.
                self.started.setdefault(event.request_id, event)
            case RequestEnded():
                self.ended[event.request_id] = event
            case NodeDispatched() | SingleFlightJoined():
                self.began[event.request_id, event.node] = event
            case NodeFinished():
                self.finished[event.request_id, event.node] = event
                self.last[event.request_id] = event
            case StepStarted():
                self.steps[event.engine, event.step] = event
            case StepEnded():
                self.step_ends[event.engine, event.step] = event
            case _:
                pass


def _primitive(began: NodeDispatched | SingleFlightJoined, seen: _Seen) -> RecordedPrimitive:
    finished = seen.finished.get((began.request_id, began.node))
    leader = seen.began.get(began.leader) if isinstance(began, SingleFlightJoined) else began
    told = leader if isinstance(leader, NodeDispatched) else None
    return RecordedPrimitive(
        name=began.node,
        kind=str(told.kind) if told else "",
        engine=began.engine,
        after=began.after if isinstance(began, NodeDispatched) else (),
        ready_s=began.time_s - max(0.0, began.waited_s),
        started_s=began.time_s,
        ended_s=max(began.time_s, finished.time_s if finished else seen.last_s),
        outcome=finished.outcome if finished else None,
        depth=told.depth if told else 1,
        size=told.size if told else 1,
    )


def _request(id: RequestId, primitives: _Primitives, seen: _Seen) -> RecordedRequest:
    started, ended = seen.started.get(id), seen.ended.get(id)
    is_graph = (
        started.origin == "graph" if started else any(primitive.after for primitive in primitives)
    )
    own = [primitive for primitive in primitives if not is_graph or primitive.stage != LEAF]
    nested = [primitive for primitive in primitives if is_graph and primitive.stage == LEAF]
    end: RequestEnded | NodeFinished | None = ended
    if end is None and started is not None and started.origin == "leaf":
        # It ends with the last of its leaves.
        is_over = all(primitive.outcome is not None for primitive in primitives)
        end = seen.last.get(id) if is_over else None
    arrived_s = started.time_s if started else seen.last_s
    arrived_s = min([arrived_s, *(primitive.ready_s for primitive in primitives)])
    ended_s = end.time_s if end else seen.last_s
    linked = _linked(own) if is_graph else _followed(own)
    return RecordedRequest(
        id=id,
        origin=started.origin if started else "graph" if is_graph else "program",
        arrived_s=arrived_s,
        ended_s=max([arrived_s, ended_s, *(primitive.ended_s for primitive in primitives)]),
        outcome=end.outcome if end else None,
        primitives=tuple(sorted(linked, key=attrgetter("started_s"))),
        nested=tuple(sorted(nested, key=attrgetter("started_s"))),
        whole=started is not None and end is not None,
    )


def _linked(own: _Primitives) -> list[RecordedPrimitive]:
    """Keep the dependencies that were recorded, and let nothing be ready before they had ended.

    The scheduler makes a primitive ready at the moment its last dependency ends, and all that has
    none together. Both are known more exactly than from how long each was ready.
    """
    by_name = {primitive.name: primitive for primitive in own}
    first_s = min((primitive.ready_s for primitive in own if not primitive.after), default=0.0)
    linked: list[RecordedPrimitive] = []
    for primitive in own:
        before = [by_name[name] for name in dict.fromkeys(primitive.after) if name in by_name]
        ended = [other for other in before if other.ended_s <= primitive.started_s]
        if ended and len(ended) == len(set(primitive.after)):
            ready_s = max(other.ended_s for other in ended)
        else:
            ready_s = primitive.ready_s if primitive.after else first_s
        linked.append(
            replace(primitive, after=tuple(other.name for other in ended), ready_s=ready_s)
        )
    return linked


def _followed(own: _Primitives) -> list[RecordedPrimitive]:
    """Take for dependencies what had ended before; of those, what no other of them followed.

    One that ended at the very moment another came was before it if it was dispatched before.
    """
    order = {primitive.name: place for place, primitive in enumerate(own)}
    by_end = sorted(own, key=lambda primitive: (primitive.ended_s, order[primitive.name]))
    ends = [(primitive.ended_s, order[primitive.name]) for primitive in by_end]
    #: of those that had ended by then, when the last came
    latest = list(
        accumulate(((primitive.ready_s, order[primitive.name]) for primitive in by_end), max)
    )
    linked: list[RecordedPrimitive] = []
    for primitive in own:
        count = bisect_left(ends, (primitive.ready_s, order[primitive.name]))
        first = bisect_left(ends, latest[count - 1], 0, count) if count else 0
        linked.append(replace(primitive, after=tuple(other.name for other in by_end[first:count])))
    return linked


def _step(started: StepStarted, seen: _Seen) -> RecordedStep:
    ended = seen.step_ends.get((started.engine, started.step))
    return RecordedStep(
        engine=started.engine,
        step=started.step,
        started_s=started.time_s,
        ended_s=ended.time_s if ended else max(seen.last_s, started.time_s),
        members=started.members,
        threads=started.threads,
        ok=ended.ok if ended else None,
    )
