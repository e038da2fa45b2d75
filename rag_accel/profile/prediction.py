"""Predicted gains of a program, computed from a run of it without acceleration.

Each gain is the requests' recorded time, played again by ``replay``, over their time played again
with other dependencies or with calls that take no time. A gain of 2 halves the time.

What is assumed beside the assumptions of ``replay``:

- A call takes as long as it took. A server takes any number of calls at once.
- Calls of one composite start together, at most ``at_once`` of them; call ``n`` starts once call
  ``n - at_once`` has ended. What the program computes between two of them passes in each.
- A call whose answer is cached takes no time if an equal call came before it.
- Calls that an engine of this library would compute take another time there, which a plain run
  does not show: anything from none to the time they took. Where the gain differs between the two by
  more than ``MOST_UNKNOWN``, it is unknown.
- The scheduler itself takes no time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Literal, NamedTuple

from rag_accel.profile.recording import (
    RecordedEngine,
    RecordedPrimitive,
    RecordedRequest,
    Recording,
)
from rag_accel.profile.replay import replay

MOST_UNKNOWN = 1.1
"""The ratio of a gain's bounds up to which the lower one is given."""

_ENGINE_ITEMS = 64

Runner = Literal["caller", "cache", "engine"]
"""What runs a call once the program is accelerated."""

_After = dict[str, tuple[str, ...]]
_Group = tuple[Sequence[Sequence[str]], int]
"""The primitives of each of several calls, and how many run together."""


class CallPlace(NamedTuple):
    """The place of a call among a composite's independent calls, ``at_once`` of which would run
    together but for an ``obstacle``, which is empty if there is none."""

    group: int
    place: int
    at_once: int
    obstacle: str = ""


@dataclass(frozen=True, slots=True)
class WatchedCall:
    """A piece of a leaf call of a plain run.

    Args:
        call: number of the outermost leaf call that it is part of.
        engine: the class of its object.
        runner: what runs it once the program is accelerated.
        places: its places in composites, the outermost first.
        asked: equal for equal inputs; None if the input is unknown.
        is_rest: whether it goes on with a call that had another leaf called.
    """

    call: int
    engine: str = ""
    runner: Runner = "caller"
    places: tuple[CallPlace, ...] = ()
    asked: int | None = None
    is_rest: bool = False


@dataclass(frozen=True, slots=True)
class Prediction:
    """The gain of one option; None, where ``reason`` says why, if it is unknown."""

    option: str
    gain: float | None
    reason: str


Calls = Mapping[str, WatchedCall]


def predictions(recording: Recording, calls: Calls) -> tuple[Prediction, ...]:
    """Return what acceleration and further options bring the requests that succeeded.

    Args:
        recording: of a plain run, whose primitives have names of their own in all requests.
        calls: by the names of these primitives.
    """
    after, num_spread = _spread(recording, partial(_composites, calls=calls))
    return (
        _acceleration(recording, calls, after, num_spread),
        _named_classes(recording, calls, after),
        _own_calls(recording, calls),
        _more_users(recording, calls),
    )


def _acceleration(recording: Recording, calls: Calls, after: _After, num_spread: int) -> Prediction:
    cached, plain_s = _cached(recording, calls), _mean_s(recording)
    low = plain_s / _mean_s(recording, after, cached)
    high = plain_s / _mean_s(recording, after, cached | _computed(recording, calls))
    parts = [
        f"{num_spread} times calls of a composite side by side" if num_spread else "",
        f"{len(cached)} times a cached answer of an equal call" if cached else "",
    ]
    acts = " and ".join(filter(None, parts)) or "nothing that a replay knows acts on it"
    if high <= MOST_UNKNOWN * low:
        return Prediction("accelerate()", low, acts)
    bounds = f"between {low:.2f}x and {high:.2f}x: a plain run does not show how fast the engines"
    return Prediction("accelerate()", None, f"{bounds} here compute; {acts}")


def _named_classes(recording: Recording, calls: Calls, after: _After) -> Prediction:
    places = (place for call in calls.values() for place in call.places)
    obstacles = list(dict.fromkeys(place.obstacle for place in places if place.obstacle))
    if not obstacles:
        return Prediction("thread_safe_classes", 1.0, "no composite lacks it")
    groups = partial(_composites, calls=calls, despite_obstacles=True)
    named, _ = _spread(recording, groups)
    more = f", and {len(obstacles) - 1} further obstacles" if len(obstacles) > 1 else ""
    reason = f"beside accelerate(), with calls of composites side by side: {obstacles[0]}{more}"
    gain = _mean_s(recording, after) / _mean_s(recording, named)
    return Prediction("thread_safe_classes", gain, reason)


def _own_calls(recording: Recording, calls: Calls) -> Prediction:
    after, num_groups = _spread(recording, partial(_equal_searches, calls=calls))
    reason = (
        f"{num_groups} times one text is searched for several times in a row, as if no search"
        " needed the results of another"
    )
    gain = _mean_s(recording) / _mean_s(recording, after)
    return Prediction("searches for one text side by side", gain, reason)


def _more_users(recording: Recording, calls: Calls) -> Prediction:
    option = "all users at once, in shared steps"
    computed = {calls[name].engine for name in _computed(recording, calls)}
    if not computed:
        return Prediction(option, 1.0, "no engine here computes a call, so no step is shared")
    together = tuple(map(_at_zero, recording.done))
    alone = {name: RecordedEngine(name, capacity=1) for name in computed}
    shared = {name: RecordedEngine(name, True, False, _ENGINE_ITEMS) for name in computed}
    alone_s, shared_s = (
        max(replay(Recording(together, (), {**recording.engines, **own})).makespan_s.values())
        for own in (alone, shared)
    )
    reason = (
        f"at most: the {len(together)} requests at once, a step as long as its longest call;"
        " without acceleration one call after the other"
    )
    return Prediction(option, alone_s / shared_s if shared_s else 1.0, reason)


def _at_zero(request: RecordedRequest) -> RecordedRequest:
    """Return a request as if it had arrived at time zero."""
    at, names = request.arrived_s, ("ready_s", "started_s", "ended_s")
    primitives = tuple(
        replace(part, **{name: getattr(part, name) - at for name in names})
        for part in request.primitives
    )
    return replace(request, arrived_s=0.0, ended_s=request.ended_s - at, primitives=primitives)


def _mean_s(
    recording: Recording, after: _After | None = None, instant: Set[str] = frozenset()
) -> float:
    """Return a request's mean time, played again, if ``instant`` calls take none."""

    def played(part: RecordedPrimitive) -> RecordedPrimitive:
        # Waiting is not played again; what comes after keeps its distance to the recorded end.
        return replace(part, started_s=part.ended_s) if part.name in instant else part

    requests = tuple(
        replace(request, primitives=tuple(map(played, request.primitives)))
        for request in recording.done
    )
    times_s = replay(replace(recording, requests=requests), after).makespan_s.values()
    # Also of requests that took no time at all, a ratio is a number.
    return max(sum(times_s) / len(times_s), 1e-9)


def _names(recording: Recording) -> set[str]:
    return {primitive.name for request in recording.done for primitive in request.primitives}


def _computed(recording: Recording, calls: Calls) -> set[str]:
    return {name for name in _names(recording) if calls[name].runner == "engine"}


def _cached(recording: Recording, calls: Calls) -> set[str]:
    """Return the calls whose answer a cache has: an equal call came before them, in any request."""
    found, seen = set[str](), set[tuple[str, int]]()
    for name, call in calls.items():
        if call.runner == "cache" and call.asked is not None and not call.is_rest:
            if (call.engine, call.asked) in seen:
                found.add(name)
            seen.add((call.engine, call.asked))
    return found & _names(recording)


def _spread(
    recording: Recording, groups: Callable[[RecordedRequest], Iterable[_Group]]
) -> tuple[_After, int]:
    """Return what calls wait for if each group's begin together, and the number of groups."""
    spread, num_groups = _After(), 0
    for request in recording.done:
        after = {primitive.name: primitive.after for primitive in request.primitives}
        for members, at_once in groups(request):
            _let_go(after, members, at_once)
            num_groups += 1
        spread |= after
    return spread, num_groups


def _composites(
    request: RecordedRequest, calls: Calls, *, despite_obstacles: bool = False
) -> Iterator[_Group]:
    """Yield the calls of composites, the innermost first."""
    groups = defaultdict[tuple[int, CallPlace], dict[int, list[str]]](dict)
    for primitive in request.primitives:
        for depth, place in enumerate(calls[primitive.name].places):
            members = groups[-depth, place._replace(place=0)]
            members.setdefault(place.place, []).append(primitive.name)
    for (_, group), members in sorted(groups.items()):
        if despite_obstacles or not group.obstacle:
            yield list(members.values()), group.at_once


def _let_go(after: _After, calls: Sequence[Sequence[str]], at_once: int) -> None:
    """Change ``after``: calls begin together, ``at_once`` of them, and what follows waits for all.

    They ran one after the other.
    """
    inside = {name for call in calls for name in call}
    ends = [set(call) - {other for name in call for other in after[name]} for call in calls]
    before = {other for name in calls[0] for other in after[name]} - set(calls[0])
    for place, call in enumerate(calls[1:], 1):
        freed = ends[place - at_once] if place >= at_once else set[str]()
        for name in call:
            if set(call).isdisjoint(after[name]):
                after[name] = (*before, *freed)
    for name, others in after.items():
        if name not in inside and not inside.isdisjoint(others):
            after[name] = (*(set(others) - inside), *set[str]().union(*ends))


def _equal_searches(request: RecordedRequest, calls: Calls) -> Iterator[_Group]:
    """Yield the searches for one text that the program's own code made one after the other."""
    outermost: dict[int, RecordedPrimitive] = {}

    def text_of(piece: RecordedPrimitive) -> int | None:
        first = outermost.setdefault(calls[piece.name].call, piece)
        known = calls[first.name]
        # A composite's calls are spread by acceleration itself.
        return known.asked if first.kind == "SEARCHING" and not known.places else None

    for text, row in groupby(request.primitives, key=text_of):
        made: dict[int, list[str]] = {}
        for piece in row:
            made.setdefault(calls[piece.name].call, []).append(piece.name)
        if text is not None and len(made) > 1:
            yield list(made.values()), len(made)
