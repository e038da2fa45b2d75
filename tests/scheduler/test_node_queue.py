"""The queue of an engine against a list that is searched and sorted each time."""

from __future__ import annotations

from core_harness import key, spec
from hypothesis import given
from hypothesis import strategies as st

from rag_accel.scheduler.runs import OVERDUE_LEVELS, NodeQueue, NodeRun

AGEING_S = 0.5


def node(request: int, name: str, depth: int, queued_at: float, size: int = 1) -> NodeRun:
    """Make a node of a request that arrived at the time of its number."""
    run = NodeRun(key(request, name), spec(name, depth=depth, size=size), float(request))
    run.queued_at = queued_at
    return run


def expected_order(nodes: list[NodeRun], now: float) -> list[NodeRun]:
    """Order nodes, listed in the order they were queued, as the queue promises."""
    eligible: list[NodeRun] = []
    for run in nodes:
        siblings = [other for other in nodes if other.key.request == run.key.request]
        deepest = max(other.spec.depth for other in siblings)
        if run.spec.depth + (now - run.queued_at) / AGEING_S >= deepest:
            eligible.append(run)
    eligible.sort(key=lambda run: (run.arrived_at, run.key.request, run.queued_at))
    if nodes and nodes[0].queued_at <= now - OVERDUE_LEVELS * AGEING_S:
        eligible = [nodes[0], *(run for run in eligible if run is not nodes[0])]
    return eligible


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 4), st.integers(0, 3), st.floats(0.01, 2.0)),
        max_size=40,
    )
)
def test_it_agrees_with_a_searched_list(moves: list[tuple[bool, int, int, float]]) -> None:
    queue, model, now = NodeQueue(), list[NodeRun](), 0.0
    for index, (adds, request, depth, wait) in enumerate(moves):
        now += wait
        if adds or not model:
            model.append(node(request, str(index), depth, now, size=depth + 1))
            queue.add(model[-1])
        else:
            queue.discard(model.pop((request * 7 + depth) % len(model)).key)
        assert list(queue) == model
        assert len(queue) == len(model)
        assert queue.items == sum(run.spec.size for run in model)
        assert [run.key for run in queue.by_urgency(now, AGEING_S)] == [
            run.key for run in expected_order(model, now)
        ]
        for number in range(5):
            assert queue.has_request(key(number, "").request) == any(
                run.key.request == number for run in model
            )


def test_a_node_that_is_not_here_is_discarded_without_harm() -> None:
    queue = NodeQueue()
    queue.add(node(1, "a", 1, 0.0))
    queue.discard(key(1, "b"))
    queue.discard(key(2, "a"))
    assert len(queue) == 1


def test_a_node_can_be_looked_up() -> None:
    queue = NodeQueue()
    queue.add(node(1, "a", 1, 0.0))
    assert key(1, "a") in queue
    assert queue.get(key(1, "b")) is None
