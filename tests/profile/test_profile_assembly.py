"""Events are put together again, also where some are missing."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rag_accel.profile.assembly import assemble
from rag_accel.profile.recording import RecordedEngine, RecordedRequest, stage_in
from rag_accel.telemetry import TraceEvent
from rag_accel.telemetry.events import (
    EVENT_TYPES,
    EngineJoined,
    NodeDispatched,
    NodeFinished,
    RequestEnded,
    RequestStarted,
    SingleFlightJoined,
    StepEnded,
    StepStarted,
)

BOTH = ((1, "a"), (1, "b"))


def leaf(name: str, ready: float, start: float, end: float, request: int = 1) -> list[TraceEvent]:
    return [
        NodeDispatched(start, request, name, "e", start - ready, "DECODING"),
        NodeFinished(end, request, name, "e", "done", end - start),
    ]


def program(*leaves: list[TraceEvent]) -> RecordedRequest:
    """Return a program that made these calls, told in the order in which they were dispatched."""
    told = [event for one in leaves for event in one]
    (one,) = assemble(
        [RequestStarted(0, 1, "program"), *told, RequestEnded(99, 1, "done")]
    ).requests
    return one


def after(one: RecordedRequest) -> dict[str, tuple[str, ...]]:
    return {each.name: each.after for each in one.primitives}


@pytest.mark.parametrize(
    ("primitive", "stage"),
    [
        ("search.embedding", "search"),
        ("search#12.searching", "search"),
        ("my.search.embedding", "my.search"),
        ("search.embedding.2", "search"),
        ("answer.partial_prefilling", "answer"),
        ("answer.decoding.fold", "answer"),
        ("answer.decodings", "answer.decodings"),
        ("leaf3", "leaf"),
        ("anything", "anything"),
    ],
)
def test_the_stage_in_the_name_of_a_primitive(primitive: str, stage: str) -> None:
    assert stage_in(primitive) == stage


def test_a_graph_keeps_its_dependencies_and_is_ready_when_they_had_ended() -> None:
    recording = assemble(
        [
            RequestStarted(0.0, 1, "graph"),
            NodeDispatched(0.5, 1, "a", "x", 0.2, "EMBEDDING", (), 2, 3),
            NodeFinished(1.1, 1, "a", "x", "done"),
            NodeDispatched(1.7, 1, "b", "y", 0.6 + 1e-12, "SEARCHING", ("a",), 1),
            NodeFinished(2.0, 1, "b", "y", "done"),
            RequestEnded(2.0, 1, "done"),
        ]
    )
    (one,) = recording.done
    a, b = one.primitives
    assert (a.kind, a.engine, a.depth, a.size, a.ready_s) == ("EMBEDDING", "x", 2, 3, 0.3)
    assert (b.after, b.ready_s, b.started_s) == (("a",), 1.1, 1.7)
    assert (one.arrived_s, one.ended_s, one.outcome) == (0.0, 2.0, "done")
    assert sorted(recording.engines) == ["x", "y"]


def test_calls_from_inside_a_graphs_function_stand_apart() -> None:
    recording = assemble(
        [
            RequestStarted(0, 1, "graph"),
            NodeDispatched(0, 1, "ask.function", "user code", 0, "FUNCTION"),
            *leaf("leaf1", 1, 1, 2),
            NodeFinished(3, 1, "ask.function", "user code", "done"),
            RequestEnded(3, 1, "done"),
        ]
    )
    (one,) = recording.done
    assert [each.name for each in one.primitives] == ["ask.function"]
    assert [each.name for each in one.nested] == ["leaf1"]


def test_a_call_of_a_program_follows_those_that_had_ended_when_it_came() -> None:
    one = program(
        leaf("leaf1", 0, 0, 2),
        leaf("leaf2", 0, 0, 3),
        leaf("leaf3", 3, 3, 4),
        leaf("leaf4", 4, 4, 5),
    )
    assert after(one) == {
        "leaf1": (),
        "leaf2": (),
        "leaf3": ("leaf1", "leaf2"),
        "leaf4": ("leaf3",),
    }


def test_calls_that_take_no_time_follow_each_other_in_the_order_they_came() -> None:
    one = program(leaf("leaf1", 1, 1, 1), leaf("leaf2", 1, 1, 1), leaf("leaf3", 1, 1, 2))
    assert after(one) == {"leaf1": (), "leaf2": ("leaf1",), "leaf3": ("leaf2",)}


times = st.integers(0, 12)


@settings(deadline=None)
@given(st.lists(st.tuples(times, times, times), max_size=9))
def test_what_a_call_follows_is_all_that_led_to_it_and_nothing_twice(
    spans: list[tuple[int, int, int]],
) -> None:
    leaves = sorted((ready, ready + wait, ready + wait + run) for ready, wait, run in spans)
    leaves.sort(key=lambda one: one[1])
    one = program(*(leaf(f"leaf{n}", *span) for n, span in enumerate(leaves)))
    by_name = {each.name: each for each in one.primitives}

    def leads_to(name: str) -> set[str]:
        found = set(by_name[name].after)
        return found.union(*(leads_to(other) for other in found))

    for each in one.primitives:
        before = {o.name for o in one.primitives if o.ended_s < each.ready_s}
        assert before <= leads_to(each.name)
        assert all(by_name[name].ended_s <= each.ready_s for name in each.after)
        for name in each.after:
            assert not any(name in leads_to(other) for other in each.after)


def test_a_single_leaf_ends_its_request() -> None:
    (one,) = assemble([RequestStarted(0, 1, "leaf"), *leaf("leaf1", 1, 2, 5)]).requests
    assert (one.origin, one.outcome, one.arrived_s, one.ended_s) == ("leaf", "done", 0, 5)
    assert one.whole


def test_a_leaf_that_was_refused_never_ran() -> None:
    events = [RequestStarted(1, 1, "leaf"), NodeFinished(2, 1, "leaf1", "", "rejected")]
    (one,) = assemble(events).requests
    assert (one.outcome, one.ended_s, one.primitives, one.whole) == ("rejected", 2, (), True)


def test_a_shared_result_was_waited_for_and_never_ran() -> None:
    recording = assemble(
        [
            RequestStarted(0, 1, "leaf"),
            RequestStarted(1, 2, "leaf"),
            NodeDispatched(0, 1, "leaf1", "e", 0, "EMBEDDING", (), 1, 4),
            NodeFinished(3, 1, "leaf1", "e", "done", 3),
            SingleFlightJoined(3, 2, "leaf1", "e", (1, "leaf1"), 2),
            NodeFinished(3, 2, "leaf1", "e", "done"),
        ]
    )
    (shared,) = recording.done[1].primitives
    assert (shared.kind, shared.size, shared.queued_s, shared.running_s) == ("EMBEDDING", 4, 2, 0)


def test_a_primitive_whose_step_raised_runs_from_its_last_start() -> None:
    one = program(
        [NodeDispatched(1, 1, "leaf1", "e", 1), NodeDispatched(4, 1, "leaf1", "e", 4)],
        [NodeFinished(6, 1, "leaf1", "e", "done")],
    )
    (retried,) = one.primitives
    assert (retried.queued_s, retried.running_s) == (4, 2)


def test_what_still_runs_lasts_until_the_recording_ends_and_is_not_whole() -> None:
    events = [
        RequestStarted(0, 1, "graph"),
        NodeDispatched(1, 1, "a", "e", 0),
        StepStarted(1, "e", 7, ((1, "a"),), 2),
        RequestStarted(9, 2, "program"),
    ]
    recording = assemble(events)
    first, second = recording.requests
    assert (first.outcome, first.ended_s, first.whole) == (None, 9, False)
    assert (first.primitives[0].outcome, first.primitives[0].ended_s) == (None, 9)
    assert (second.outcome, second.primitives) == (None, ())
    assert [(step.ended_s, step.ok) for step in recording.steps] == [(9, None)]
    assert recording.done == ()


def test_a_request_whose_beginning_was_overwritten_is_not_whole() -> None:
    events = [*leaf("b.decoding", 1, 2, 3), RequestEnded(4, 1, "done")]
    (one,) = assemble(events, dropped=5).requests
    assert (one.whole, one.arrived_s, one.outcome) == (False, 1, "done")


def test_a_call_that_outlives_its_program_makes_it_longer() -> None:
    events = [RequestStarted(0, 1, "program"), RequestEnded(2, 1, "done")]
    (one,) = assemble([*events, *leaf("leaf1", 1, 1, 5)]).requests
    assert one.ended_s == 5


def test_a_request_whose_end_is_told_to_be_before_its_beginning_took_no_time() -> None:
    (one,) = assemble([RequestStarted(2, 1, "graph"), RequestEnded(1, 1, "done")]).requests
    assert (one.arrived_s, one.ended_s) == (2, 2)


def test_a_call_after_its_program_has_left_is_still_the_programs() -> None:
    events = [RequestStarted(0, 1, "program"), RequestEnded(2, 1, "done")]
    (one,) = assemble([*events, RequestStarted(3, 1, "leaf"), *leaf("leaf1", 3, 3, 5)]).requests
    assert (one.origin, one.arrived_s, one.ended_s) == ("program", 0, 5)


def test_steps_and_engines_are_told() -> None:
    recording = assemble(
        [
            EngineJoined(0, "e", True, False, 8),
            EngineJoined(0, "b", False, False, None),
            StepStarted(1, "e", 1, BOTH, 3),
            StepEnded(2, "e", 1, ((1, "b"),), 3, 0.9, ok=False),
        ]
    )
    assert list(recording.engines.values()) == [
        RecordedEngine("b"),
        RecordedEngine("e", owned=True, capacity=8),
    ]
    (step,) = recording.steps
    assert (step.members, step.threads, step.started_s, step.ended_s) == (BOTH, 3, 1, 2)
    assert step.ok is False


any_event = st.sampled_from(EVENT_TYPES).flatmap(
    lambda kind: st.builds(kind, time_s=st.floats(0, 1e6))
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(any_event, max_size=12), st.integers(0, 3))
def test_any_events_give_a_recording_in_which_nothing_ends_before_it_begins(
    events: list[TraceEvent], dropped: int
) -> None:
    recording = assemble(events, dropped)
    for one in recording.requests:
        assert one.arrived_s <= one.ended_s
        for each in (*one.primitives, *one.nested):
            assert each.started_s <= each.ended_s
