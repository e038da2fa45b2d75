"""Engines that keep work between steps: joining, leaving, interrupting."""

from __future__ import annotations

from core_harness import Core, key, spec

from rag_accel.scheduler.commands import CancelWork, EndNode, EndRequest, InterruptStep, StartStep


def stepped(max_batch: int = 4, interruptible: bool = False, **options: float) -> Core:
    return Core(**options).own(max_batch=max_batch, stepped=True, interruptible=interruptible)


def test_unfinished_work_is_stepped_again() -> None:
    core = stepped()
    core.leaf(1, "a")
    assert core.end_step(partial=[key(1, "a")]) == [StartStep.match(admitted=())]


def test_new_work_joins_at_the_border_of_a_step() -> None:
    core = stepped()
    core.leaf(1, "a")
    assert core.leaf(2, "a") == []
    assert core.end_step(final=[]) == [StartStep.match(admitted=(key(2, "a"),))]
    assert core.end_step(final=[key(1, "a")]) == [
        EndNode.match(node=key(1, "a"), outcome="done"),
        StartStep.match(admitted=()),
    ]


def test_an_engine_rests_once_all_its_work_has_ended() -> None:
    core = stepped()
    core.leaf(1, "a")
    assert core.end_step(final=[key(1, "a")]) == [EndNode.match(outcome="done")]
    assert core.state.is_empty()


def test_only_as_much_joins_as_there_is_room_beside_the_work_held() -> None:
    core = stepped(max_batch=2)
    core.leaf(1, "a")
    core.leaf(2, "a")
    core.leaf(3, "a")
    assert core.end_step(final=[]) == [StartStep.match(admitted=(key(2, "a"),))]
    assert core.end_step(final=[]) == [StartStep.match(admitted=())]
    assert core.end_step(final=[key(1, "a")])[-1] == StartStep.match(admitted=(key(3, "a"),))


def test_a_node_that_does_not_fit_beside_the_work_held_waits_for_room() -> None:
    core = stepped(max_batch=4)
    core.leaf(1, "a", size=2)
    core.leaf(2, "a", size=3)
    assert core.end_step(final=[]) == [StartStep.match(admitted=())]
    assert core.end_step(final=[key(1, "a")])[-1] == StartStep.match(admitted=(key(2, "a"),))


def test_a_smaller_node_passes_one_that_does_not_fit_only_while_that_is_young() -> None:
    core = stepped(max_batch=4, ageing_s=0.5)
    core.leaf(1, "a", size=2)
    core.leaf(2, "a", size=3)
    core.leaf(3, "a", at=0.1)
    assert core.end_step(at=0.1, final=[]) == [StartStep.match(admitted=(key(3, "a"),))]
    core.leaf(4, "a", at=0.2)
    assert core.end_step(at=0.5, final=[]) == [StartStep.match(admitted=())]


def test_a_node_larger_than_any_batch_waits_until_it_is_alone() -> None:
    core = stepped(max_batch=4, ageing_s=0.1)
    core.leaf(1, "a")
    core.leaf(2, "a", size=9)
    core.leaf(3, "a")
    assert core.end_step(at=0.2, final=[]) == [StartStep.match(admitted=())]
    commands = core.end_step(at=0.3, final=[key(1, "a")])
    assert commands[-1] == StartStep.match(admitted=(key(2, "a"),))
    assert core.end_step(at=0.4, final=[]) == [StartStep.match(admitted=())]
    assert core.end_step(at=0.5, final=[key(2, "a")])[-1] == StartStep.match(
        admitted=(key(3, "a"),)
    )


def test_cancelled_work_is_taken_off_the_engine_at_once() -> None:
    core = stepped()
    core.leaf(1, "a")
    assert core.cancel_node(1, "a") == [
        CancelWork.match(engine="e", nodes=(key(1, "a"),)),
        EndNode.match(node=key(1, "a"), outcome="cancelled"),
    ]


def test_a_report_on_cancelled_work_is_dropped() -> None:
    core = stepped()
    core.leaf(1, "a")
    core.cancel_node(1, "a")
    assert core.end_step(final=[key(1, "a")]) == []
    assert core.state.is_empty()


def test_the_work_of_a_cancelled_graph_is_taken_off_the_engine() -> None:
    core = stepped()
    core.graph(1, spec("a"), spec("b"))
    assert core.cancel_request(1) == [
        CancelWork.match(nodes=(key(1, "a"),)),
        CancelWork.match(nodes=(key(1, "b"),)),
        EndRequest.match(request=1, outcome="cancelled"),
    ]


def test_new_work_interrupts_a_waiting_step_once() -> None:
    core = stepped(interruptible=True)
    core.leaf(1, "a")
    assert core.leaf(2, "a") == [InterruptStep.match(engine="e")]
    assert core.leaf(3, "a") == []
    core.end_step(final=[])
    assert core.leaf(4, "a") == [InterruptStep.match(engine="e")]


def test_an_engine_that_cannot_be_interrupted_is_not() -> None:
    core = stepped(interruptible=False)
    core.leaf(1, "a")
    assert core.leaf(2, "a") == []


def test_a_full_engine_is_not_interrupted_for_work_that_cannot_join() -> None:
    core = stepped(max_batch=1, interruptible=True)
    core.leaf(1, "a")
    assert core.leaf(2, "a") == []
    assert core.cancel_node(1, "a") == [
        CancelWork.match(nodes=(key(1, "a"),)),
        EndNode.match(outcome="cancelled"),
        InterruptStep.match(engine="e"),
    ]


def test_an_engine_that_keeps_nothing_between_steps_is_never_interrupted() -> None:
    core = Core().own(stepped=False, interruptible=True)
    core.leaf(1, "a")
    assert core.leaf(2, "a") == []
