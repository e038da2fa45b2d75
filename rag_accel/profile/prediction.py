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

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
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

MOST_REPLAYED = 10_000
"""Calls that are played again; requests beyond are left out."""

_ENGINE_ITEMS = 64

Runner = Literal["caller", "cache", "engine"]
"""What runs a call once the program is accelerated."""

_After = dict[str, tuple[str, ...]]


class CallPlace(NamedTuple):
    """The place of a call among the independent calls of one composite.

    ``at_once`` of them would run together, but for an ``obstacle``; empty without one.
    """

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
    played = replayable(recording)
    return (
        _acceleration(played, calls),
        _named_classes(played, calls),
        _own_calls(played, calls),
        _more_users(played, calls),
    )


def replayable(recording: Recording) -> Recording:
    """Return the first requests that succeeded, with at most ``MOST_REPLAYED`` calls."""
    kept: list[RecordedRequest] = []
    num_calls = 0
    for request in recording.done:
        num_calls += len(request.primitives)
        if kept and num_calls > MOST_REPLAYED:
            break
        kept.append(request)
    return replace(recording, requests=tuple(kept), steps=())


def _acceleration(recording: Recording, calls: Calls) -> Prediction:
    cached, computed = _cached(recording, calls), _computed(recording, calls)
    after, num_spread, _ = _spread(recording, calls)
    plain_s = _mean_s(recording)
    low, high = (
        plain_s / _mean_s(_without(recording, names), after)
        for names in (cached, cached | computed)
    )
    parts = [
        f"{num_spread} times calls of a composite side by side" if num_spread else "",
        f"{len(cached)} times a cached answer of an equal call" if cached else "",
    ]
    acts = " and ".join(filter(None, parts)) or "nothing that a replay knows acts on it"
    if high <= MOST_UNKNOWN * low:
        return Prediction("accelerate()", low, acts)
    bounds = f"between {low:.2f}x and {high:.2f}x: a plain run does not show how fast the engines"
    return Prediction("accelerate()", None, f"{bounds} here compute; {acts}")


def _named_classes(recording: Recording, calls: Calls) -> Prediction:
    after, _, obstacles = _spread(recording, calls, despite_obstacles=True)
    if not obstacles:
        return Prediction("thread_safe_classes", 1.0, "no composite lacks it")
    gain = _mean_s(recording, _spread(recording, calls)[0]) / _mean_s(recording, after)
    more = f", and {len(obstacles) - 1} further obstacles" if len(obstacles) > 1 else ""
    reason = f"beside accelerate(), with calls of composites side by side: {obstacles[0]}{more}"
    return Prediction("thread_safe_classes", gain, reason)


def _own_calls(recording: Recording, calls: Calls) -> Prediction:
    after: _After = {}
    num_groups = 0
    for request in recording.requests:
        own = {primitive.name: primitive.after for primitive in request.primitives}
        for group in _equal_searches(request, calls):
            _let_go(own, group, len(group))
            num_groups += 1
        after |= own
    reason = (
        f"{num_groups} times one text is searched for several times in a row, as if no search"
        " needed the results of another"
        if num_groups
        else "nothing searches for one text several times in a row"
    )
    gain = _mean_s(recording) / _mean_s(recording, after)
    return Prediction("searches for one text side by side", gain, reason)


def _more_users(recording: Recording, calls: Calls) -> Prediction:
    option = "all users at once, in shared steps"
    computed = {calls[name].engine for name in _computed(recording, calls)}
    if not computed:
        return Prediction(option, 1.0, "no engine here computes a call, so no step is shared")
    together = tuple(map(_at_zero, recording.requests))
    alone_s, shared_s = (
        max(replay(Recording(together, (), {**recording.engines, **own})).makespan_s.values())
        for own in (
            {name: RecordedEngine(name, capacity=1) for name in computed},
            {name: RecordedEngine(name, True, False, _ENGINE_ITEMS) for name in computed},
        )
    )
    reason = (
        f"at most: the {len(together)} requests at once, a step as long as its longest"
        " call; without acceleration one call after the other"
    )
    return Prediction(option, alone_s / shared_s if shared_s else 1.0, reason)


def _mean_s(recording: Recording, after: _After | None = None) -> float:
    times_s = replay(recording, after).makespan_s.values()
    # Also of requests that took no time at all, a ratio is a number.
    return max(sum(times_s) / len(times_s), 1e-9)


def _names(recording: Recording) -> set[str]:
    return {primitive.name for request in recording.requests for primitive in request.primitives}


def _computed(recording: Recording, calls: Calls) -> set[str]:
    """Return the calls that engines of this library would compute."""
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


def _without(recording: Recording, names: Collection[str]) -> Recording:
    """Return a recording in which these calls take no time."""

    def changed(primitive: RecordedPrimitive) -> RecordedPrimitive:
        # Waiting is not played again; what comes after keeps its distance to the recorded end.
        taken = primitive.name in names
        return replace(primitive, started_s=primitive.ended_s) if taken else primitive

    requests = (
        replace(request, primitives=tuple(map(changed, request.primitives)))
        for request in recording.requests
    )
    return replace(recording, requests=tuple(requests))


def _spread(
    recording: Recording, calls: Calls, *, despite_obstacles: bool = False
) -> tuple[_After, int, list[str]]:
    """Return what calls wait for if composites make theirs side by side.

    With it come the number of such composites, and the obstacles of all.
    """
    spread, num_groups, obstacles = _After(), 0, dict[str, None]()
    for request in recording.requests:
        after = {primitive.name: primitive.after for primitive in request.primitives}
        groups: dict[tuple[int, CallPlace], dict[int, list[str]]] = {}
        for name in after:
            for depth, place in enumerate(calls[name].places):
                members = groups.setdefault((-depth, place._replace(place=0)), {})
                members.setdefault(place.place, []).append(name)
        for (_, group), members in sorted(groups.items(), key=lambda item: item[0][0]):
            if group.obstacle:
                obstacles[group.obstacle] = None
            if despite_obstacles or not group.obstacle:
                _let_go(after, [members[place] for place in sorted(members)], group.at_once)
                num_groups += 1
        spread |= after
    return spread, num_groups, list(obstacles)


def _let_go(after: _After, calls: Sequence[Sequence[str]], at_once: int) -> None:
    """Let calls that ran one after the other begin together, and what followed wait for all.

    Args:
        after: what each primitive of a request waits for; changed.
        calls: the primitives of each call.
        at_once: the most calls that run together.
    """
    inside = {name for call in calls for name in call}
    ends = [_ends(after, call) for call in calls]
    before: tuple[str, ...] = ()
    for place, call in enumerate(calls):
        for name in call:
            if not set(call).isdisjoint(after[name]):
                continue
            if place == 0:
                before = tuple(dict.fromkeys((*before, *after[name])))
            else:
                after[name] = (*before, *(ends[place - at_once] if place >= at_once else ()))
    every_end = tuple(name for of_call in ends for name in of_call)
    for name, others in after.items():
        if name not in inside and not inside.isdisjoint(others):
            outside = tuple(other for other in others if other not in inside)
            after[name] = (*outside, *every_end)


def _ends(after: _After, call: Sequence[str]) -> list[str]:
    followed = {other for name in call for other in after[name]}
    return [name for name in call if name not in followed]


def _equal_searches(request: RecordedRequest, calls: Calls) -> Iterator[list[list[str]]]:
    """Yield the searches for one text that the program's own code made one after the other."""

    def text_of(pieces: Sequence[RecordedPrimitive]) -> int | None:
        known = calls[pieces[0].name]
        # A composite's calls are spread by acceleration itself.
        return known.asked if pieces[0].kind == "SEARCHING" and not known.places else None

    in_row = groupby(request.primitives, key=lambda primitive: calls[primitive.name].call)
    for text, row in groupby([list(pieces) for _, pieces in in_row], key=text_of):
        made = list(row)
        in_order = all(
            max(primitive.ended_s for primitive in last) <= following[0].ready_s
            for last, following in pairwise(made)
        )
        if text is not None and in_order and len(made) > 1:
            yield [[primitive.name for primitive in pieces] for pieces in made]


def _at_zero(request: RecordedRequest) -> RecordedRequest:
    """Return a request as if it had arrived at time zero."""
    at = request.arrived_s
    moved = (
        replace(part, ready_s=part.ready_s - at, started_s=part.started_s - at, ended_s=end_s - at)
        for part in request.primitives
        for end_s in (part.ended_s,)
    )
    return replace(request, arrived_s=0.0, ended_s=request.ended_s - at, primitives=tuple(moved))
