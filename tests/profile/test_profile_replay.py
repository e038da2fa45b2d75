"""A recording played again takes as long as it did; with other dependencies, as long as it would.

The recordings of the properties come from the scheduler's core, driven here event by event and
seen through the observer: the replay knows nothing of them but the trace.
"""

from __future__ import annotations

import heapq
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profile_harness import engines_of, on_clock, primitive, recording, request, settle

from rag_accel import END, START, RAGraph
from rag_accel.accelerator.observer import SchedulerObserver
from rag_accel.engine_api.kinds import PrimitiveKind
from rag_accel.errors import ConfigError
from rag_accel.profile.assembly import assemble
from rag_accel.profile.profile import profile_of
from rag_accel.profile.recording import RecordedEngine, Recording
from rag_accel.profile.replay import replay, saved_ms
from rag_accel.scheduler.commands import StartCall, StartStep
from rag_accel.scheduler.messages import (
    BorrowedEngineAdded,
    CallEnded,
    EngineName,
    Event,
    NodeReport,
    NodeSpec,
    OwnedEngineAdded,
    RequestArrived,
    RequestId,
    StepEnded,
)
from rag_accel.scheduler.state import CoreOptions, SchedulerState
from rag_accel.scheduler.transitions import handle
from rag_accel.telemetry import MemorySink, Metrics, Tracer
from rag_accel.testing import ManualClock

A, B, C = (primitive("a", 0, 1), primitive("b", 1, 3, "a"), primitive("c", 3, 6, "b"))
CHAIN = {"a": (), "b": ("a",), "c": ("b",)}
PRUNED = {"a": (), "b": (), "c": ("a", "b")}


def play(
    engines: dict[str, int | None], requests: list[tuple[float, list[tuple[NodeSpec, float]]]]
) -> Recording:
    """Run requests, each with its arrival and its nodes' seconds, on engines of these capacities.

    Engines whose name begins with ``o`` are owned.
    """
    state, sink, now = SchedulerState(CoreOptions(batch_wait_s=0)), MemorySink(), 0.0
    observer = SchedulerObserver(Metrics(), Tracer(0, [sink]))
    coming: list[tuple[float, int, Event]] = []
    numbers, takes = count(), dict[tuple[int, str], float]()

    def tell(event: Event, more: bool) -> None:
        commands = handle(state, event, now, more=more)
        observer.observe(event, commands, now, state)
        for command in commands:
            if isinstance(command, StartStep):
                reports = tuple(NodeReport(key, "final") for key in command.admitted)
                took = max(takes[key] for key in command.admitted)
                ended: Event = StepEnded(command.engine, command.step, reports, took)
            elif isinstance(command, StartCall):
                ended, took = CallEnded(command.node, command.engine, True), takes[command.node]
            else:
                continue
            heapq.heappush(coming, (now + took, next(numbers), ended))

    for name, capacity in engines.items():
        if name.startswith("o"):
            tell(OwnedEngineAdded(EngineName(name), capacity or 64), False)
        else:
            tell(BorrowedEngineAdded(EngineName(name), capacity), False)
    for number, (arrival, nodes) in enumerate(requests, start=1):
        takes |= {(number, spec.name): took for spec, took in nodes}
        event = RequestArrived(RequestId(number), tuple(spec for spec, _ in nodes), arrival)
        heapq.heappush(coming, (arrival, next(numbers), event))
    while coming:
        now, _, event = heapq.heappop(coming)
        tell(event, bool(coming) and coming[0][0] == now)
    return assemble(sink.events)


ENGINES = {"o1": 1, "o3": 3, "b": None, "b2": 2}
#: in quarters of a second, so that sums are exact; each different, so that nothing is a tie
durations = st.permutations(range(1, 60)).map(lambda ns: iter([n / 4 for n in ns]))


@st.composite
def any_run(draw: st.DrawFn) -> Recording:
    takes = draw(durations)
    requests: list[tuple[float, list[tuple[NodeSpec, float]]]] = []
    for _ in range(draw(st.integers(1, 4))):
        nodes: list[tuple[NodeSpec, float]] = []
        for place in range(draw(st.integers(1, 6))):
            after = tuple(spec.name for spec, _ in nodes if draw(st.booleans()))
            engine = EngineName(draw(st.sampled_from(list(ENGINES))))
            depth, size = draw(st.integers(1, 4)), draw(st.integers(1, 2))
            spec = NodeSpec(f"n{place}", engine, PrimitiveKind.FUNCTION, after, depth, size)
            nodes.append((spec, next(takes)))
        requests.append((draw(st.integers(0, 20)) / 8, nodes))
    return play(dict(ENGINES), requests)


@settings(deadline=None)
@given(run=any_run())
def test_a_run_played_again_takes_exactly_as_long(run: Recording) -> None:
    assert run.done == run.requests
    again = replay(run)
    assert again.makespan_s == {one.id: one.makespan_s for one in run.done}
    ends = {(one.id, each.name): each.ended_s for one in run.done for each in one.primitives}
    assert again.ended_s == ends


@settings(deadline=None)
@given(run=any_run())
def test_dependencies_given_as_they_were_save_nothing(run: Recording) -> None:
    alone = Recording(run.done[:1], engines=run.engines)
    as_it_was = {each.name: each.after for each in run.done[0].primitives}
    assert saved_ms(alone, as_it_was, as_it_was) == 0


@settings(deadline=None)
@given(run=any_run())
def test_without_dependencies_and_limits_a_request_takes_as_long_as_its_longest(
    run: Recording,
) -> None:
    free = {name: RecordedEngine(name) for name in run.engines}
    alone = Recording(run.done[:1], engines=free)
    (one,) = alone.requests
    independent = {each.name: () for each in one.primitives}
    longest = max(each.running_s for each in one.primitives)
    assert replay(alone, independent).makespan_s == {one.id: longest}


def test_what_need_not_wait_saves_the_time_it_waited() -> None:
    assert saved_ms(recording(request(A, B, C)), CHAIN, PRUNED) == 1000
    assert saved_ms(recording(request(A, B, C)), PRUNED, CHAIN) == -1000


def test_nothing_is_saved_where_the_engine_takes_one_at_a_time() -> None:
    assert saved_ms(recording(request(A, B, C), e=1), CHAIN, PRUNED) == 0


def test_a_batch_takes_as_long_as_its_longest_member() -> None:
    run = recording(request(A, B, C), e=2)
    assert saved_ms(run, CHAIN, PRUNED) == 1000
    assert replay(run, PRUNED).ended_s == {(1, "a"): 2, (1, "b"): 2, (1, "c"): 5}


def test_work_that_is_too_large_for_the_batch_waits() -> None:
    parts = (primitive("a", 0, 1, size=2), primitive("b", 1, 3, "a", size=3), C)
    assert saved_ms(recording(request(*parts), e=4), CHAIN, PRUNED) == 0
    assert saved_ms(recording(request(*parts), e=5), CHAIN, PRUNED) == 1000


def test_an_engine_that_keeps_work_has_places() -> None:
    for places, saved in ((1, 0), (2, 1000)):
        engines = {"e": RecordedEngine("e", owned=True, stepped=True, capacity=places)}
        run = Recording((request(A, B, C),), engines=engines)
        assert saved_ms(run, CHAIN, PRUNED) == saved
    assert replay(run, PRUNED).ended_s == {(1, "a"): 1, (1, "b"): 2, (1, "c"): 5}


def test_time_outside_of_primitives_passes_again() -> None:
    late = primitive("b", 3, 5, "a", ready_s=2)
    run = recording(request(A, late, arrived=-1, ended=7))
    again = replay(run)
    # One second until a, one after it, and two in the end; the queue was that of others.
    assert again.ended_s == {(1, "a"): 1, (1, "b"): 4}
    assert again.makespan_s == {1: 7}


def test_the_mean_is_over_the_requests_that_ran_what_is_named() -> None:
    other = request(primitive("other", 0, 9), id=2)
    assert saved_ms(recording(request(A, B, C), other), CHAIN, PRUNED) == 1000


def test_what_did_not_run_is_not_waited_for() -> None:
    short = request(A, primitive("c", 1, 4, "a"), id=1)
    long = request(A, B, C, id=2)
    found = replay(recording(short, long), CHAIN)
    assert found.makespan_s == {1: 3, 2: 6}


def test_requests_that_failed_are_not_played() -> None:
    failed = request(primitive("x", 0, 4), id=1, outcome="failed")
    assert replay(recording(failed, request(A, id=2))).makespan_s == {2: 1}


def test_a_dependency_that_was_never_recorded_is_named() -> None:
    with pytest.raises(ConfigError, match="found serach") as raised:
        replay(recording(request(A, primitive("search", 1, 2, "a"))), {"a": ["serach"]})
    assert "did you mean 'search'?" in str(raised.value)


def test_primitives_that_wait_for_each_other_are_named() -> None:
    with pytest.raises(ConfigError, match="wait for each other") as raised:
        replay(recording(request(A, B)), {"a": ["b"], "b": ["a"]})
    assert raised.value.found == "a, b"


def test_a_recording_of_another_graph_is_refused() -> None:
    with pytest.raises(ConfigError, match="record requests of this graph"):
        saved_ms(recording(request(A)), {"x": ()}, {"x": ()})


def test_the_saving_of_a_real_run(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = RAGraph()
    graph.add_retrieval("search", top_k=1, output="docs")
    graph.add_generation("answer", prompt="{input} {docs}")
    graph.add_edge(START, "search").add_edge("search", "answer").add_edge("answer", END)
    clock = ManualClock()
    takes: dict[str, Any] = {"embedder": [1.0], "index": [2.0], "llm": [4.0]}
    with on_clock(monkeypatch, clock, **engines_of(clock.advance, takes)) as (acc, _):
        acc.run(graph, input="x")
        settle(acc)
        run = profile_of(acc.tracer).recording
    assert replay(run).makespan_s == {run.done[0].id: 7.0}
    was = {one.name: one.after for one in run.done[0].primitives}
    assert saved_ms(run, was, was | {"answer.decoding": ()}) == 3000
