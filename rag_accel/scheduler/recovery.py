"""Further attempts of primitives that have failed, and the fallbacks of their stages.

The core knows no errors: an event says of each failure whether another attempt may mend it, and how
long that must wait at least. How many attempts a primitive has, how long it waits before each, and
what takes its place after the last came with it.

All primitives of an owned engine together have ``MOST_RETRIES`` further attempts, and one more for
each that ends well: while an engine is down, they are not made for each.

A primitive that waits for its next attempt holds no place on its engine and no permit. Whoever
shared its run goes on without it.
"""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import Final

from rag_accel.scheduler.commands import Command, RetryNode, StartFallback
from rag_accel.scheduler.completions import cancel_node, end_node, promote
from rag_accel.scheduler.messages import Fallback, NodeKey, Outcome
from rag_accel.scheduler.queueing import append_nodes, ready
from rag_accel.scheduler.runs import NodeRun, RequestRun
from rag_accel.scheduler.state import SchedulerState

#: no attempt is waited for longer, whatever an error asks for
LONGEST_WAIT_S: Final = 3600.0


def end_failed(
    state: SchedulerState,
    node: NodeRun,
    retry_after_s: float | None,
    now: float,
    out: list[Command],
) -> None:
    """Give a node that has failed, and has left its engine, its next attempt or its fallback.

    Without either it ends. ``retry_after_s`` is the least wait; ``None`` says that another attempt
    would fail as well. What has reached the caller is not made again.
    """
    if retry_after_s is None or node.streamed:
        end_node(state, node, "failed", now, out)
    elif not _try_again(state, node, retry_after_s, now, out):
        fall_back(state, node, "failed", now, out)


def _try_again(
    state: SchedulerState, node: NodeRun, least_s: float, now: float, out: list[Command]
) -> bool:
    """Let a node wait for its next attempt; False if it has none that begins in time."""
    if node.attempts >= len(node.spec.backoffs_s):
        return False
    delay_s = max(least_s, node.spec.backoffs_s[node.attempts])
    run = state.requests[node.key.request]
    if delay_s > LONGEST_WAIT_S:
        return False
    if run.deadline is not None and now + delay_s >= run.deadline:
        return False
    engine = state.engines[node.spec.engine]
    if engine.owned and not engine.retries.spend():
        return False
    node.attempts += 1
    node.taken = 0
    followers, node.followers = node.followers, {}
    out.append(RetryNode(node.key, node.attempts, delay_s))
    state.move(node, "retrying", f"attempt {node.attempts} in {delay_s} s")
    promote(state, followers, now)
    if delay_s <= 0.0:
        ready(state, node, now)
    else:
        _remember(state, now + delay_s, node.key)
    return True


def _remember(state: SchedulerState, at: float, key: NodeKey) -> None:
    """Remember when a node has its next attempt; forget those of nodes that have none."""
    if len(state.retries) > 64 and len(state.retries) > 2 * state.live:
        state.retries = [entry for entry in state.retries if _waits(state, entry[1]) is not None]
        heapq.heapify(state.retries)
    heapq.heappush(state.retries, (at, key))


def _waits(state: SchedulerState, key: NodeKey) -> NodeRun | None:
    node = state.find_node(key)
    return node if node is not None and node.state == "retrying" else None


def retry_due(state: SchedulerState, now: float) -> None:
    """Queue the nodes whose time has come."""
    while state.retries and state.retries[0][0] <= now:
        node = _waits(state, heapq.heappop(state.retries)[1])
        if node is not None:
            ready(state, node, now)


def fall_back(
    state: SchedulerState, node: NodeRun, outcome: Outcome, now: float, out: list[Command]
) -> None:
    """Let the fallback of a node's stage run in its place; without one the node ends.

    The stage's last primitive, which others wait for, ends with the last of the fallback.
    """
    fallback = node.spec.fallback
    if fallback is None or node.streamed:
        end_node(state, node, outcome, now, out)
        return
    run = state.requests[node.key.request]
    last = run.nodes[fallback.last]
    out.append(StartFallback(node.key, fallback))
    added = append_nodes(state, run, fallback.specs)
    followers, node.followers = node.followers, {}
    _wait_for(state, last, added[-1])
    _drop(state, run, fallback, node, now, out)
    for new in added:
        ready(state, new, now)
    promote(state, followers, now)


def _wait_for(state: SchedulerState, last: NodeRun, other: NodeRun) -> None:
    """Let a stage's last primitive wait for the last one of its fallback, and end with it."""
    last.is_replaced = True
    last.spec = replace(last.spec, after=(*last.spec.after, other.key.node))
    last.blockers += 1
    other.dependents.append(last.key.node)
    if last.state != "waiting":
        state.move(last, "waiting", "for its fallback")


def _drop(
    state: SchedulerState,
    run: RequestRun,
    fallback: Fallback,
    failed: NodeRun,
    now: float,
    out: list[Command],
) -> None:
    """End a stage's other primitives without a result, and release what waits for them."""
    dropped: list[NodeRun] = []
    for name in fallback.others:
        node = run.nodes[name]
        if node.state == "ended":
            continue
        if node is not failed:  # that one has left its engine
            cancel_node(state, node, out)
        followers, node.followers = node.followers, {}
        state.move(node, "ended", "its stage's fallback runs")
        run.unfinished -= 1
        dropped.append(node)
        promote(state, followers, now)
    for node in dropped:
        for name in node.dependents:
            child = run.nodes[name]
            if child.state != "ended":
                child.blockers -= 1
                if child.blockers == 0:
                    ready(state, child, now)
