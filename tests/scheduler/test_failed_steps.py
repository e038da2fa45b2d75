"""A step that raised is retried one by one, so that one bad item harms nobody else."""

from __future__ import annotations

from core_harness import Core, key, spec

from rag_accel.scheduler.commands import EndNode, EndRequest, StartStep


def failed(*requests: int, stepped: bool = False) -> Core:
    """Return a core in which a step over one leaf ``a`` of each request is about to raise."""
    core = Core().own(stepped=stepped)
    core.leaf(9, "busy")
    for request in requests:
        core.leaf(request, "a")
    core.end_step(final=[key(9, "busy")])
    return core


def test_a_step_over_one_node_that_raises_fails_it() -> None:
    core = failed(1)
    assert core.fail_step() == [EndNode.match(node=key(1, "a"), outcome="failed")]
    assert core.state.is_empty()


def test_the_members_of_a_step_that_raises_are_retried_one_by_one() -> None:
    core = failed(1, 2)
    assert core.fail_step() == [StartStep.match(admitted=(key(1, "a"),))]
    assert core.end_step() == [
        EndNode.match(node=key(1, "a"), outcome="done"),
        StartStep.match(admitted=(key(2, "a"),)),
    ]


def test_only_the_bad_member_fails_in_the_end() -> None:
    core = failed(1, 2, 3)
    core.fail_step()
    assert core.end_step()[0] == EndNode.match(node=key(1, "a"), outcome="done")
    assert core.fail_step()[0] == EndNode.match(node=key(2, "a"), outcome="failed")
    assert core.end_step()[0] == EndNode.match(node=key(3, "a"), outcome="done")
    assert core.state.is_empty()


def test_a_node_that_is_retried_is_not_joined() -> None:
    core = failed(1, 2)
    core.leaf(3, "a")
    assert core.fail_step() == [StartStep.match(admitted=(key(1, "a"),))]
    assert core.end_step()[-1] == StartStep.match(admitted=(key(2, "a"),))
    assert core.end_step()[-1] == StartStep.match(admitted=(key(3, "a"),))


def test_an_older_healthy_node_goes_before_a_retry_but_not_with_it() -> None:
    core = failed(5, 6)
    core.leaf(4, "a")
    assert core.fail_step() == [StartStep.match(admitted=(key(4, "a"),))]
    assert core.end_step()[-1] == StartStep.match(admitted=(key(5, "a"),))


def test_a_retry_on_an_engine_that_keeps_work_stays_alone_until_it_has_ended() -> None:
    core = failed(1, 2, stepped=True)
    core.leaf(3, "a")
    assert core.fail_step() == [StartStep.match(admitted=(key(1, "a"),))]
    assert core.end_step(final=[]) == [StartStep.match(admitted=())]
    assert core.end_step(final=[key(1, "a")])[-1] == StartStep.match(admitted=(key(2, "a"),))
    assert core.fail_step()[-1] == StartStep.match(admitted=(key(3, "a"),))


def test_a_retry_waits_for_the_work_an_engine_keeps_and_is_not_passed_for_ever() -> None:
    core = failed(4, 5, stepped=True)
    core.leaf(1, "a")
    assert core.fail_step(at=0.1) == [StartStep.match(admitted=(key(1, "a"),))]
    core.leaf(6, "a", at=0.2)
    assert core.end_step(at=1.0, final=[]) == [StartStep.match(admitted=())]
    assert core.end_step(at=1.1, final=[key(1, "a")])[-1] == StartStep.match(
        admitted=(key(4, "a"),)
    )


def test_a_node_whose_output_has_reached_the_caller_is_never_retried() -> None:
    core = failed(1, 2, stepped=True)
    core.end_step(partial=[key(1, "a")])
    assert core.fail_step() == [
        EndNode.match(node=key(1, "a"), outcome="failed"),
        StartStep.match(admitted=(key(2, "a"),)),
    ]


def test_a_member_that_reports_an_error_fails_alone() -> None:
    core = failed(1, 2)
    assert core.end_step(error=[key(1, "a")], final=[key(2, "a")]) == [
        EndNode.match(node=key(1, "a"), outcome="failed"),
        EndNode.match(node=key(2, "a"), outcome="done"),
    ]


def test_a_member_that_an_engine_says_nothing_about_fails() -> None:
    core = failed(1, 2)
    assert core.end_step(final=[key(2, "a")]) == [
        EndNode.match(node=key(2, "a"), outcome="done"),
        EndNode.match(node=key(1, "a"), outcome="failed"),
    ]
    assert core.state.is_empty()


def test_a_second_report_on_the_same_node_is_dropped() -> None:
    core = failed(1)
    assert core.end_step(final=[key(1, "a")], error=[key(1, "a")]) == [
        EndNode.match(node=key(1, "a"), outcome="done")
    ]


def test_a_failed_member_of_a_graph_takes_its_siblings_of_the_same_step_along() -> None:
    core = Core().own(stepped=True)
    core.graph(1, spec("a"), spec("b"))
    core.leaf(2, "a")
    core.end_step(partial=[key(1, "b")])
    assert core.fail_step() == [
        EndNode.match(node=key(1, "b"), outcome="failed"),
        EndRequest.match(request=1, outcome="failed", node=key(1, "b")),
        StartStep.match(admitted=(key(2, "a"),)),
    ]


def test_a_cancelled_member_is_not_retried() -> None:
    core = failed(1, 2)
    core.cancel_node(1, "a")
    assert core.fail_step() == [StartStep.match(admitted=(key(2, "a"),))]
    assert core.end_step() == [EndNode.match(node=key(2, "a"), outcome="done")]
    assert core.state.is_empty()
