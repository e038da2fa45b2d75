"""What is too large for the moment enters its engine in parts, and smaller work rides along."""

from __future__ import annotations

import pytest
from core_harness import Core, key, spec
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_accel.engine_api.kinds import PrimitiveKind
from rag_accel.scheduler.commands import CancelWork, EndNode, EndRequest, StartStep
from rag_accel.scheduler.messages import (
    EngineName,
    NodeKey,
    NodeSpec,
    RequestArrived,
    RequestId,
    WorkSlice,
)


def splitting(max_batch: int = 8, **parts: object) -> Core:
    """Return a core whose engine takes parts; an item takes 0.01 s, a budget holds 4 of them."""
    core = Core(slice_min_s=0.045, slice_max_s=0.045, batch_wait_s=0)
    core.own(max_batch=max_batch, per_item_s=0.01, itemwise=True, **parts)
    return core


def part(request: int, name: str, start: int, stop: int, size: int) -> WorkSlice:
    return WorkSlice(key(request, name), start, stop, stop == size)


def end_part(core: Core, at: float, *nodes: NodeKey, final: tuple[NodeKey, ...] = ()) -> list:
    """End parts of 4 items that took what they should."""
    return core.end_step(at=at, took=0.04, part=list(nodes), final=list(final))


def test_a_large_node_is_cut_while_others_live_and_a_small_one_rides_along() -> None:
    core = splitting()
    core.leaf(9, "busy")
    core.leaf(1, "upload", size=8, at=0.01)
    core.leaf(2, "query", at=0.02)
    assert core.end_step(at=0.03)[-1] == StartStep.match(
        admitted=(key(1, "upload"), key(2, "query")), parts=(part(1, "upload", 0, 4, 8),)
    )
    core.leaf(3, "query", at=0.04)
    assert end_part(core, 0.08, key(1, "upload"), final=(key(2, "query"),)) == [
        EndNode.match(node=key(2, "query"), outcome="done"),
        StartStep.match(
            admitted=(key(1, "upload"), key(3, "query")), parts=(part(1, "upload", 4, 8, 8),)
        ),
    ]
    assert core.end_step(at=0.12) == [
        EndNode.match(node=key(1, "upload"), outcome="done"),
        EndNode.match(node=key(3, "query"), outcome="done"),
    ]
    assert core.state.is_empty()


def test_a_query_that_comes_in_the_middle_of_an_upload_overtakes_its_rest() -> None:
    core = splitting()
    core.open(7)
    core.leaf(1, "upload", size=40)
    core.leaf(2, "query", at=0.01)
    (start,) = end_part(core, 0.04, key(1, "upload"))
    assert start == StartStep.match(
        admitted=(key(1, "upload"), key(2, "query")), parts=(part(1, "upload", 4, 8, 40),)
    )
    assert EndNode.match(node=key(2, "query"), outcome="done") in end_part(
        core, 0.08, key(1, "upload"), final=(key(2, "query"),)
    )
    assert core.engine().running[key(1, "upload")].left == 32


def test_alone_a_node_is_cut_only_if_it_is_larger_than_any_batch() -> None:
    core = splitting()
    assert core.leaf(1, "fits", size=8) == [StartStep.match(parts=())]
    core.end_step(at=1)
    (start,) = core.leaf(1, "upload", size=20, at=2)
    assert start == StartStep.match(parts=(part(1, "upload", 0, 7, 20),))


def test_an_engine_that_keeps_work_is_never_filled_by_one_node_that_is_cut() -> None:
    core = splitting(stepped=True)
    (start,) = core.leaf(1, "upload", size=20)
    assert start == StartStep.match(parts=(part(1, "upload", 0, 4, 20),))
    core.leaf(2, "query", at=0.1)
    assert core.end_step(at=0.2, final=[]) == [StartStep.match(admitted=(key(2, "query"),))]


def test_no_part_follows_before_all_that_is_left_over_has_ended() -> None:
    core = splitting(stepped=True)
    core.leaf(1, "upload", size=20)
    core.leaf(2, "query", at=0.1)
    core.end_step(at=0.2, final=[])
    core.leaf(3, "query", at=0.3)
    # The second query is left over; the third joins it, and the upload's next part waits.
    (start,) = core.end_step(at=0.4, part=[key(1, "upload")])
    assert start == StartStep.match(admitted=(key(3, "query"),), parts=())
    commands = core.end_step(at=0.5, final=[key(2, "query"), key(3, "query")])
    assert commands[-1] == StartStep.match(admitted=(key(1, "upload"),))


def test_newcomers_let_a_part_in_that_has_waited_long() -> None:
    core = splitting(stepped=True)
    core.open(8)
    core.leaf(1, "upload", size=20)
    core.leaf(2, "0", at=0.1)
    core.end_step(at=0.2, final=[])
    core.end_step(at=0.3, part=[key(1, "upload")])
    for turn in range(1, 9):
        core.leaf(2 + turn, "0", at=0.3 + turn / 10)
        before = key(1 + turn, "0")
        if before in core.engine().running:
            core.end_step(at=0.35 + turn / 10, final=[before])
    assert key(1, "upload") in core.engine().running
    assert core.engine().running[key(1, "upload")].taken == 4


def test_among_equals_none_is_cut() -> None:
    core = splitting()
    for request in range(1, 5):
        core.leaf(request, "rank", size=6, at=request / 100)
    for turn in range(1, 4):
        (start,) = [
            command for command in core.end_step(at=turn / 10) if isinstance(command, StartStep)
        ]
        assert start.parts == ()


def test_only_one_node_is_cut_in_a_step_and_it_is_the_oldest() -> None:
    core = splitting()
    core.leaf(9, "busy")
    core.leaf(1, "upload", size=8, at=0.01)
    core.leaf(2, "upload", size=8, at=0.02)
    core.leaf(3, "query", at=0.03)
    assert core.end_step(at=0.04)[-1] == StartStep.match(
        admitted=(key(1, "upload"), key(3, "query"))
    )


def test_parts_shrink_and_grow_with_what_their_items_turn_out_to_cost() -> None:
    core = splitting(max_batch=16)
    core.open(9)
    core.leaf(1, "upload", size=40)
    (start,) = core.end_step(at=0.08, took=0.08, part=[key(1, "upload")])
    assert start == StartStep.match(parts=(part(1, "upload", 4, 6, 40),))
    (start,) = core.end_step(at=0.1, took=0.0001, part=[key(1, "upload")])
    assert start == StartStep.match(parts=(part(1, "upload", 6, 9, 40),))


def test_a_kind_or_an_engine_that_cannot_be_cut_is_not() -> None:
    core = splitting()
    core.own("f", max_batch=8, per_item_s=0.01)
    core.own("g", max_batch=8, stepped=True, itemwise=True, ends_in_time=True)
    core.open(9)
    assert core.leaf(1, "a", "f", size=8) == [StartStep.match(parts=())]
    assert core.leaf(2, "a", "g", size=8) == [StartStep.match(parts=())]
    ingest = NodeSpec("a", EngineName("e"), PrimitiveKind.INGESTION, size=8)
    assert core.send(RequestArrived(RequestId(3), (ingest,), 0.0)) == [StartStep.match(parts=())]


def test_splitting_can_be_switched_off() -> None:
    core = Core(split_nodes=False).own(max_batch=8, per_item_s=0.01, itemwise=True)
    core.open(9)
    assert core.leaf(1, "upload", size=500) == [StartStep.match(parts=())]


def test_a_node_of_a_graph_that_grew_is_cut_like_any_other() -> None:
    core = splitting()
    core.borrow()
    core.open(9)
    core.graph(1, spec("branch", "b"))
    commands = core.end_call(1, "branch", "b", spec("upload", "e", "branch", size=8), at=1)
    assert commands[-1] == StartStep.match(parts=(part(1, "upload", 0, 4, 8),))
    assert end_part(core, 1.1, key(1, "upload")) == [
        StartStep.match(parts=(part(1, "upload", 4, 8, 8),))
    ]
    assert core.end_step(at=1.2) == [
        EndNode.match(node=key(1, "upload"), outcome="done"),
        EndRequest.match(request=1, outcome="done"),
    ]


def test_what_follows_a_node_waits_for_its_last_part() -> None:
    core = splitting()
    core.open(9)
    core.graph(1, spec("upload", size=8, depth=2), spec("next", "e", "upload"))
    (start,) = end_part(core, 0.1, key(1, "upload"))
    assert start == StartStep.match(admitted=(key(1, "upload"),))
    assert core.end_step(at=0.2)[-1] == StartStep.match(admitted=(key(1, "next"),))


def test_followers_get_the_result_of_the_whole() -> None:
    core = splitting()
    core.open(9)
    core.leaf(1, "upload", size=8, share="s")
    core.leaf(2, "upload", size=8, share="s")
    core.end_step(at=0.1, part=[key(1, "upload")])
    assert core.end_step(at=0.2) == [
        EndNode.match(node=key(1, "upload"), outcome="done"),
        EndNode.match(node=key(2, "upload"), outcome="done", leader=key(1, "upload")),
    ]


def between_parts(core: Core) -> None:
    """Let one part of an upload have ended, and the next wait behind a retried node."""
    core.open(9)
    core.leaf(1, "upload", size=20, at=0.1)
    core.leaf(2, "query", at=0.1)
    core.end_step(at=0.2, final=[])
    core.end_step(at=0.3, part=[key(1, "upload")])


@pytest.mark.parametrize("how", ["node", "request"])
def test_a_node_cancelled_between_two_parts_leaves_nothing_behind(how: str) -> None:
    core = splitting(stepped=True)
    between_parts(core)
    cancel = core.cancel_node(1, "upload", 0.4) if how == "node" else core.cancel_request(1, 0.4)
    assert cancel[:1] == [CancelWork.match(engine="e", nodes=(key(1, "upload"),))]
    assert EndNode.match(node=key(1, "upload"), outcome="cancelled") in cancel


def test_a_node_cancelled_inside_a_part_is_forgotten_once_the_part_has_ended() -> None:
    core = splitting()
    core.open(9)
    core.leaf(1, "upload", size=8)
    assert core.cancel_node(1, "upload") == [EndNode.match(outcome="cancelled")]
    assert end_part(core, 0.1, key(1, "upload")) == [CancelWork.match(nodes=(key(1, "upload"),))]
    core.close_program(9)
    assert core.state.is_empty()


def test_a_part_that_fails_ends_its_node_and_the_others_do_not_run() -> None:
    core = splitting()
    core.open(9)
    core.leaf(1, "upload", size=8)
    assert core.end_step(at=0.1, error=[key(1, "upload")]) == [EndNode.match(outcome="failed")]
    core.close_program(9)
    assert core.state.is_empty()


def test_a_part_whose_step_raised_is_tried_again_alone_and_the_others_follow() -> None:
    core = splitting()
    core.leaf(9, "busy")
    core.leaf(1, "upload", size=8, at=0.01)
    core.leaf(2, "query", at=0.02)
    core.end_step(at=0.03)
    (start,) = core.fail_step(at=0.04)
    assert start == StartStep.match(
        admitted=(key(1, "upload"),), parts=(part(1, "upload", 0, 4, 8),)
    )
    commands = end_part(core, 0.08, key(1, "upload"))
    assert commands[-1] == StartStep.match(admitted=(key(2, "query"),))


def test_a_node_whose_second_part_raises_alone_fails_and_is_forgotten() -> None:
    core = splitting()
    core.open(9)
    core.leaf(1, "upload", size=8)
    end_part(core, 0.1, key(1, "upload"))
    assert core.fail_step(at=0.2) == [
        CancelWork.match(nodes=(key(1, "upload"),)),
        EndNode.match(node=key(1, "upload"), outcome="failed"),
    ]


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=12),
    max_batch=st.integers(1, 12),
    stepped=st.booleans(),
    took=st.floats(0.0, 0.3),
)
def test_every_item_enters_exactly_once_and_in_order(
    sizes: list[int], max_batch: int, stepped: bool, took: float
) -> None:
    core = splitting(max_batch, stepped=stepped)
    core.leaf(99, "busy")
    for request, size in enumerate(sizes):
        core.leaf(request, "a", size=size)
    entered = {key(request, "a"): 0 for request in range(len(sizes))}
    commands, at = core.end_step(), 0.0
    while core.engine().step is not None:
        (start,) = [command for command in commands if isinstance(command, StartStep)]
        cut = {one.node: one for one in start.parts}
        for node in start.admitted:
            whole = WorkSlice(node, 0, sizes[node.request], True)
            one = cut.get(node, whole)
            assert one.start == entered[node]
            entered[node] = one.stop
        at += took
        commands = core.end_step(
            at=at,
            took=took,
            part=[one.node for one in start.parts if not one.is_last],
            final=[node for node in start.admitted if node not in cut or cut[node].is_last],
        )
    assert entered == {key(request, "a"): size for request, size in enumerate(sizes)}
    assert core.state.is_empty()
