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

_SEARCHING = "SEARCHING"
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
    """The gain of one option.

    Args:
        option: its name.
        gain: the requests' time without it over their time with it; None if it is unknown.
        reason: what the gain rests on, or why it is unknown.
    """

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
    replayed = replayable(recording)
    plain_s = _mean_s(replayed)
    return (
        _acceleration(replayed, calls, plain_s),
        _named_classes(replayed, calls),
        _own_calls(replayed, calls, plain_s),
        _more_users(replayed, calls),
        Prediction(
            "early beginnings of prompts",
            None,
            "a plain run does not show how long a model reads the beginning of a prompt",
        ),
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


def _acceleration(recording: Recording, calls: Calls, plain_s: float) -> Prediction:
    cached, computed = _cached(recording, calls), _computed(recording, calls)
    after, num_spread, _ = _spread(recording, calls)
    low = high = plain_s / _mean_s(_without(recording, cached), after)
    if computed:
        high = plain_s / _mean_s(_without(recording, cached | computed), after)
    parts = [
        f"{num_spread} times calls of a composite side by side" if num_spread else "",
        f"{len(cached)} times a cached answer of an equal call" if cached else "",
    ]
    acts = " and ".join(filter(None, parts)) or "nothing that a replay knows acts on it"
    if high <= MOST_UNKNOWN * low:
        return Prediction("accelerate()", low, acts)
    reason = (
        f"between {low:.2f}x and {high:.2f}x: a plain run does not show how fast the engines here"
        f" compute; {acts}"
    )
    return Prediction("accelerate()", None, reason)


def _named_classes(recording: Recording, calls: Calls) -> Prediction:
    option = "thread_safe_classes"
    after, _, obstacles = _spread(recording, calls, despite_obstacles=True)
    if not obstacles:
        return Prediction(option, 1.0, "no composite lacks it")
    allowed, _, _ = _spread(recording, calls)
    gain = _mean_s(recording, allowed) / _mean_s(recording, after)
    reason = f"beside accelerate(), with calls of composites side by side: {obstacles[0]}"
    more = f", and {len(obstacles) - 1} further obstacles" if len(obstacles) > 1 else ""
    return Prediction(option, gain, reason + more)


def _own_calls(recording: Recording, calls: Calls, plain_s: float) -> Prediction:
    option = "searches for one text side by side"
    after: _After = {}
    num_groups = 0
    for request in recording.requests:
        own = {primitive.name: primitive.after for primitive in request.primitives}
        for group in _equal_searches(request, calls):
            _let_go(own, group, len(group))
            num_groups += 1
        after |= own
    if not num_groups:
        return Prediction(option, 1.0, "nothing searches for one text several times in a row")
    gain = plain_s / _mean_s(recording, after)
    reason = (
        f"{num_groups} times one text is searched for several times in a row, as if no search"
        " needed the results of another"
    )
    return Prediction(option, gain, reason)


def _more_users(recording: Recording, calls: Calls) -> Prediction:
    option = "all users at once, in shared steps"
    computed = {calls[name].engine for name in _computed(recording, calls)}
    if not computed:
        return Prediction(option, 1.0, "no engine here computes a call, so no step is shared")
    together = replace(recording, requests=tuple(map(_at_zero, recording.requests)))
    alone = {name: RecordedEngine(name, capacity=1) for name in computed}
    shared = {name: RecordedEngine(name, True, False, _ENGINE_ITEMS) for name in computed}
    times_s = [
        max(replay(replace(together, engines={**recording.engines, **engines})).makespan_s.values())
        for engines in (alone, shared)
    ]
    reason = (
        f"at most: the {len(recording.requests)} requests at once, a step as long as its longest"
        " call; without acceleration one call after the other"
    )
    return Prediction(option, times_s[0] / times_s[1] if times_s[1] else 1.0, reason)


def _mean_s(recording: Recording, after: _After | None = None) -> float:
    times_s = replay(recording, after).makespan_s.values()
    # Also of requests that took no time at all, a ratio is a number.
    return max(sum(times_s) / len(times_s), 1e-9)


def _computed(recording: Recording, calls: Calls) -> frozenset[str]:
    """Return the calls that engines of this library would compute."""
    return frozenset(
        primitive.name
        for request in recording.requests
        for primitive in request.primitives
        if calls[primitive.name].runner == "engine"
    )


def _cached(recording: Recording, calls: Calls) -> frozenset[str]:
    """Return the calls whose answer a cache has: an equal call came before them, in any request."""
    found: list[str] = []
    seen: set[tuple[str, int]] = set()
    for name, call in calls.items():
        if call.runner != "cache" or call.asked is None:
            continue
        key = (call.engine, call.asked)
        if key in seen:
            found.append(name)
        seen.add(key)
    known = (primitive.name for one in recording.requests for primitive in one.primitives)
    return frozenset(found).intersection(known)


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
    return replace(recording, requests=tuple(requests)) if names else recording


def _spread(
    recording: Recording, calls: Calls, *, despite_obstacles: bool = False
) -> tuple[_After, int, tuple[str, ...]]:
    """Return what calls wait for if composites make theirs side by side.

    With it come the number of such composites, and the obstacles of all.
    """
    spread: _After = {}
    num_groups, obstacles = 0, dict[str, None]()
    for request in recording.requests:
        after = {primitive.name: primitive.after for primitive in request.primitives}
        groups: dict[CallPlace, dict[int, list[str]]] = {}
        depths: dict[CallPlace, int] = {}
        for name in after:
            for depth, place in enumerate(calls[name].places):
                group = place._replace(place=0)
                groups.setdefault(group, {}).setdefault(place.place, []).append(name)
                depths[group] = depth
        for group in sorted(groups, key=lambda group: -depths[group]):
            if group.obstacle:
                obstacles[group.obstacle] = None
            if despite_obstacles or not group.obstacle:
                places = groups[group]
                _let_go(after, [places[place] for place in sorted(places)], group.at_once)
                num_groups += 1
        spread |= after
    return spread, num_groups, tuple(obstacles)


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
        own = set(call)
        for name in call:
            if own.isdisjoint(after[name]):
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
    own = set(call)
    followed = {other for name in call for other in after[name] if other in own}
    return [name for name in call if name not in followed]


def _equal_searches(request: RecordedRequest, calls: Calls) -> Iterator[list[list[str]]]:
    """Yield the searches for one text that the program's own code made one after the other."""
    in_row = groupby(request.primitives, key=lambda primitive: calls[primitive.name].call)
    made = [list(pieces) for _, pieces in in_row]
    if len(made) > len({calls[pieces[0].name].call for pieces in made}):
        return  # calls overlap, so that none was made after the other
    row: list[list[RecordedPrimitive]] = []
    for last, call in pairwise([[], *made, []]):
        if row and not (call and _is_again(last, call, calls)):
            if len(row) > 1:
                yield [[primitive.name for primitive in pieces] for pieces in row]
            row = []
        row = [*row, call]


def _is_again(
    last: Sequence[RecordedPrimitive], call: Sequence[RecordedPrimitive], calls: Calls
) -> bool:
    first, second = calls[last[0].name], calls[call[0].name]
    return (
        (last[0].kind == call[0].kind == _SEARCHING)
        and first.asked is not None
        and first.asked == second.asked
        # A composite's calls are spread by acceleration itself.
        and not first.places
        and not second.places
        and max(primitive.ended_s for primitive in last) <= call[0].ready_s
    )


def _at_zero(request: RecordedRequest) -> RecordedRequest:
    """Return a request as if it had arrived at time zero."""
    at = request.arrived_s
    moved = (
        replace(
            primitive,
            ready_s=primitive.ready_s - at,
            started_s=primitive.started_s - at,
            ended_s=primitive.ended_s - at,
        )
        for primitive in request.primitives
    )
    return replace(request, arrived_s=0.0, ended_s=request.ended_s - at, primitives=tuple(moved))
