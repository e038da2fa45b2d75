"""A trace shows engines and requests as tracks that a viewer of Chrome traces can draw."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from profile_harness import any_request, primitive, recording, request

from rag_accel.profile.chrome_trace import ENGINES, REQUESTS, chrome_trace
from rag_accel.profile.recording import RecordedRequest, RecordedStep, Recording

Json = dict[str, Any]


def events(trace: Recording, phase: str, process: int) -> list[Json]:
    found = chrome_trace(trace)["traceEvents"]
    return [event for event in found if event["ph"] == phase and event["pid"] == process]


def tracks(trace: Recording, process: int) -> dict[int, str]:
    names = [e for e in events(trace, "M", process) if e["name"] == "thread_name"]
    return {event["tid"]: event["args"]["name"] for event in names}


FORK = request(
    primitive("a.embedding", 1, 3, engine="x", ready_s=0),
    primitive("b.embedding", 1, 4, engine="x", ready_s=0),
    primitive("c.decoding", 4, 9, "a.embedding", "b.embedding", engine="y"),
)
RUN = replace(
    recording(FORK, x=4),
    steps=(
        RecordedStep("x", 1, 0.5, 1, ((7, "other"),), 2, True),
        RecordedStep("x", 2, 1, 4, ((1, "a.embedding"), (1, "b.embedding")), 1, True),
    ),
)


def test_an_owned_engine_shows_its_steps_with_their_batches() -> None:
    (track,) = [tid for tid, name in tracks(RUN, ENGINES).items() if name == "x"]
    steps = [event for event in events(RUN, "X", ENGINES) if event["tid"] == track]
    assert [(step["name"], step["ts"], step["dur"]) for step in steps] == [
        ("step of 1", 0.5e6, 0.5e6),
        ("step of 2", 1e6, 3e6),
    ]
    assert steps[1]["args"] == {
        "batch": 2,
        "threads": 1,
        "step": 2,
        "ok": True,
        "members": ["1/a.embedding", "1/b.embedding"],
    }


def test_a_borrowed_engine_shows_its_calls() -> None:
    (track,) = [tid for tid, name in tracks(RUN, ENGINES).items() if name == "y (borrowed)"]
    (call,) = [event for event in events(RUN, "X", ENGINES) if event["tid"] == track]
    assert (call["name"], call["ts"], call["dur"]) == ("c.decoding", 4e6, 5e6)


def test_a_request_shows_its_primitives_queued_and_running() -> None:
    shown = tracks(RUN, REQUESTS)
    first = [event for event in events(RUN, "X", REQUESTS) if event["tid"] == min(shown)]
    assert shown[min(shown)] == "request 1 (graph, done)"
    assert [(event["name"], event["ts"], event["dur"]) for event in first] == [
        ("a.embedding", 0, 3e6),
        ("queued", 0, 1e6),
        ("running", 1e6, 2e6),
        ("c.decoding", 4e6, 5e6),
        ("running", 4e6, 5e6),
    ]


def test_what_overlaps_has_a_track_of_its_own() -> None:
    assert list(tracks(RUN, REQUESTS).values()) == [
        "request 1 (graph, done)",
        "request 1 (graph, done) +1",
    ]


def test_arrows_lead_from_what_was_waited_for() -> None:
    starts, ends = events(RUN, "s", REQUESTS), events(RUN, "f", REQUESTS)
    assert [event["id"] for event in starts] == [event["id"] for event in ends] == [1, 2]
    assert [event["ts"] for event in starts] == [1e6, 1e6]
    assert [(event["ts"], event["bp"]) for event in ends] == [(4e6, "e"), (4e6, "e")]


def test_what_is_queued_is_counted_per_engine() -> None:
    counted = events(RUN, "C", ENGINES)
    assert [(event["name"], event["ts"], event["args"]) for event in counted] == [
        ("queued x", 0, {"primitives": 2}),
        ("queued x", 1e6, {"primitives": 0}),
    ]


def test_groups_of_tracks_have_names() -> None:
    names = [
        (event["pid"], event["args"]["name"])
        for event in chrome_trace(RUN)["traceEvents"]
        if event["name"] == "process_name"
    ]
    assert names == [(ENGINES, "engines"), (REQUESTS, "requests")]


def test_an_engine_that_did_nothing_has_an_empty_track() -> None:
    assert "idle" in tracks(recording(idle=1), ENGINES).values()


def test_what_still_runs_is_unfinished() -> None:
    live = request(primitive("a", 0, 2, outcome=None), outcome=None, whole=False)
    (shown,) = tracks(recording(live), REQUESTS).values()
    assert shown == "request 1 (graph, unfinished)"
    assert events(recording(live), "X", REQUESTS)[0]["args"]["outcome"] == "unfinished"


def test_times_count_from_the_first_event_whatever_the_clock_says() -> None:
    late = 1e6
    moved = [
        replace(one, ready_s=one.ready_s + late, started_s=one.started_s + late,
                ended_s=one.ended_s + late)
        for one in FORK.primitives
    ]  # fmt: skip
    there = recording(request(*moved, arrived=late), x=4)
    assert chrome_trace(there) == chrome_trace(recording(FORK, x=4))


def test_an_empty_recording_is_a_trace() -> None:
    assert chrome_trace(Recording())["traceEvents"]


@settings(deadline=None)
@given(one=any_request())
def test_slices_of_a_track_lie_inside_each_other_or_apart(one: RecordedRequest) -> None:
    trace = chrome_trace(recording(one))
    open_until: dict[tuple[int, int], list[float]] = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] != "X":
            continue
        outer = open_until[event["pid"], event["tid"]]
        while outer and outer[-1] <= event["ts"]:
            outer.pop()
        end = event["ts"] + event["dur"]
        assert not outer or end <= outer[-1]
        outer.append(end)


@settings(deadline=None)
@given(one=any_request())
def test_a_trace_is_json_in_the_order_of_time_and_arrows_have_two_ends(
    one: RecordedRequest,
) -> None:
    trace = json.loads(json.dumps(chrome_trace(recording(one))))
    timed = [event for event in trace["traceEvents"] if event["ph"] != "M"]
    assert [event["ts"] for event in timed] == sorted(event["ts"] for event in timed)
    ends = [[event["id"] for event in timed if event["ph"] == phase] for phase in "sf"]
    assert sorted(ends[0]) == sorted(ends[1])
    assert chrome_trace(recording(one)) == trace


@settings(deadline=None)
@given(one=any_request())
def test_a_queue_is_empty_in_the_end(one: RecordedRequest) -> None:
    counted = events(recording(one), "C", ENGINES)
    assert all(event["args"]["primitives"] >= 0 for event in counted)
    assert not counted or counted[-1]["args"]["primitives"] == 0
