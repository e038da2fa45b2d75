"""Batches form while an engine is busy, in the order and within the size they should have."""

from __future__ import annotations

import pytest
from core_harness import Core, key, spec
from hypothesis import given
from hypothesis import strategies as st

from rag_accel.scheduler.commands import EndNode, EndRequest, StartStep
from rag_accel.scheduler.messages import (
    EngineName,
    LeafArrived,
    NodeReport,
    RequestId,
    StepEnded,
    Tick,
)


def test_an_idle_engine_starts_what_arrives_at_once() -> None:
    core = Core().own()
    assert core.leaf(1, "a") == [StartStep.match(engine="e", admitted=(key(1, "a"),))]


def test_what_arrives_while_an_engine_is_busy_becomes_one_batch() -> None:
    core = Core().own()
    core.leaf(1, "a")
    assert core.leaf(2, "a", at=1) == []
    assert core.leaf(3, "a", at=2) == []
    assert core.end_step(at=3) == [
        EndNode.match(node=key(1, "a"), outcome="done"),
        StartStep.match(admitted=(key(2, "a"), key(3, "a"))),
    ]


def test_an_engine_with_nothing_queued_rests_after_its_step() -> None:
    core = Core().own()
    core.leaf(1, "a")
    assert core.end_step() == [EndNode.match(outcome="done")]
    assert core.state.is_empty()


def test_every_step_has_a_number_of_its_own() -> None:
    core = Core().own("x").own("y")
    commands = core.leaf(1, "a", "x") + core.leaf(2, "a", "y")
    commands += core.leaf(3, "a", "x") + core.end_step("x")
    steps = [command.step for command in commands if isinstance(command, StartStep)]
    assert len(steps) == 3
    assert len(set(steps)) == 3


def test_a_batch_holds_at_most_max_batch_items_and_the_rest_follows() -> None:
    core = Core().own(max_batch=2)
    core.leaf(1, "a")
    for request in (2, 3, 4):
        core.leaf(request, "a")
    assert core.end_step()[-1] == StartStep.match(admitted=(key(2, "a"), key(3, "a")))
    assert core.end_step()[-1] == StartStep.match(admitted=(key(4, "a"),))


@pytest.mark.parametrize(("max_threads", "taken"), [(1, [2]), (0, [2, 3])])
def test_the_option_max_batch_bounds_what_an_engine_asks_for_unless_it_computes_elsewhere(
    max_threads: int, taken: list[int]
) -> None:
    core = Core(max_batch=1).own(max_batch=64, max_threads=max_threads)
    for request in (1, 2, 3):
        core.leaf(request, "a")
    assert core.end_step()[-1] == StartStep.match(admitted=tuple(key(one, "a") for one in taken))


def test_sizes_count_and_a_smaller_node_fills_the_gap_a_larger_one_leaves() -> None:
    core = Core().own(max_batch=8)
    core.leaf(1, "a")
    core.leaf(2, "a", size=6)
    core.leaf(3, "a", size=4)
    core.leaf(4, "a", size=2)
    assert core.end_step()[-1] == StartStep.match(admitted=(key(2, "a"), key(4, "a")))
    assert core.end_step()[-1] == StartStep.match(admitted=(key(3, "a"),))


def test_a_node_larger_than_any_batch_goes_alone() -> None:
    core = Core().own(max_batch=4)
    core.leaf(1, "a")
    core.leaf(2, "a", size=9)
    core.leaf(3, "a")
    assert core.end_step()[-1] == StartStep.match(admitted=(key(2, "a"),))
    assert core.end_step()[-1] == StartStep.match(admitted=(key(3, "a"),))


def test_a_node_larger_than_any_batch_never_joins_older_work() -> None:
    core = Core().own(max_batch=4)
    core.leaf(1, "a")
    core.leaf(2, "a")
    core.leaf(3, "a", size=9)
    assert core.end_step()[-1] == StartStep.match(admitted=(key(2, "a"),))
    assert core.end_step()[-1] == StartStep.match(admitted=(key(3, "a"),))


def test_the_oldest_request_goes_first_whatever_was_queued_first() -> None:
    core = Core().own(max_batch=1).borrow()
    core.graph(1, spec("a", "b"), spec("z", "e", "a"), at=0)
    core.leaf(2, "a", at=1)
    core.leaf(3, "a", at=2)
    core.end_call(1, "a", at=3)
    assert core.end_step(at=4)[-1] == StartStep.match(admitted=(key(1, "z"),))
    assert core.end_step(at=5)[-1] == StartStep.match(admitted=(key(3, "a"),))


def test_of_each_request_only_the_deepest_nodes_are_taken() -> None:
    core = Core().own()
    core.leaf(9, "busy")
    core.graph(1, spec("deep", depth=3), spec("shallow", depth=1), at=0.1)
    core.graph(2, spec("left", depth=2), spec("right", depth=2), at=0.1)
    assert core.end_step(at=0.2)[-1] == StartStep.match(
        admitted=(key(1, "deep"), key(2, "left"), key(2, "right"))
    )
    assert core.end_step(at=0.3)[-1] == StartStep.match(admitted=(key(1, "shallow"),))


@pytest.mark.parametrize(("at", "taken"), [(0.99, ["deep"]), (1.0, ["deep", "shallow"])])
def test_a_shallower_node_joins_once_it_has_waited_for_each_level_it_lacks(
    at: float, taken: list[str]
) -> None:
    core = Core(ageing_s=0.5).own()
    core.leaf(9, "busy")
    core.graph(1, spec("deep", depth=3), spec("shallow", depth=1), at=0)
    assert core.end_step(at=at)[-1] == StartStep.match(
        admitted=tuple(key(1, name) for name in taken)
    )


def test_a_young_request_does_not_starve_behind_an_old_one_that_never_ends() -> None:
    core = Core(ageing_s=0.1).own(max_batch=1)
    core.open(1)
    core.leaf(1, "0", at=0.0)
    core.leaf(2, "young", at=0.01)
    started = None
    for turn in range(1, 100):
        at = turn * 0.1
        core.leaf(1, str(turn), at=at)
        if StartStep.match(admitted=(key(2, "young"),)) in core.end_step(at=at):
            started = at
            break
    assert started is not None
    assert started <= 0.01 + 10 * 0.1 + 0.1


@given(
    st.lists(
        st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(1, 12)),
        min_size=1,
        max_size=30,
    ),
    st.integers(1, 8),
)
def test_whatever_is_queued_is_started_exactly_once(
    nodes: list[tuple[int, int, int]], max_batch: int
) -> None:
    core = Core().own(max_batch=max_batch)
    core.leaf(99, "busy")
    for index, (request, depth, size) in enumerate(nodes):
        core.leaf(request, str(index), depth=depth, size=size)
    started: list[object] = []
    for _ in range(len(nodes) + 1):
        for command in core.end_step() if core.engine().step is not None else []:
            if isinstance(command, StartStep):
                sizes = [nodes[int(node.node)][2] for node in command.admitted]
                assert sum(sizes) <= max_batch or len(sizes) == 1
                started += command.admitted
    assert sorted(started) == sorted(key(r, str(i)) for i, (r, _, _) in enumerate(nodes))
    assert core.state.is_empty()


def test_a_request_without_primitives_ends_at_once() -> None:
    core = Core()
    assert core.graph(1) == [EndRequest.match(request=1, outcome="done")]
    assert core.state.is_empty()


def test_what_arrives_together_starts_together() -> None:
    core = Core().own()
    events = [LeafArrived(RequestId(n), spec("a"), 0.0, None, "wait") for n in (1, 2, 3)]
    assert core.send(events[0], more=True) == []
    assert core.send(events[1], more=True) == []
    (start,) = core.send(events[2])
    assert start == StartStep.match(admitted=(key(1, "a"), key(2, "a"), key(3, "a")))


def test_what_ends_does_not_wait_for_more_to_arrive() -> None:
    core = Core().own()
    core.leaf(1, "a")
    core.leaf(2, "a")
    running = core.engine().step
    assert running is not None
    report = NodeReport(key(1, "a"), "final")
    ended = StepEnded(EngineName("e"), running, (report,), 0.1)
    assert core.send(ended, more=True) == [EndNode.match(node=key(1, "a"), outcome="done")]
    assert core.send(Tick()) == [StartStep.match(admitted=(key(2, "a"),))]
