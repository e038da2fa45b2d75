"""Arrivals of leaves: their requests, their depth in the program, and the wait for their end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar

from rag_accel.config import Options
from rag_accel.leaves.identity import RequestIdentity
from rag_accel.scheduler.driver import AsyncLeaf, Driver
from rag_accel.scheduler.messages import LeafArrived, NodeCancelled, NodeKey, NodeSpec

#: Tells the longest remaining path of whatever calls a leaf in this context, in steps; None where
#: it does not know. Set by whoever knows the shape of the program that runs.
leaf_depth: ContextVar[Callable[[], int | None] | None] = ContextVar(
    "rag_accel_leaf_depth", default=None
)

#: Of a leaf whose place in its program is unknown.
UNKNOWN_DEPTH = 1


def arrival_of(
    identity: RequestIdentity, spec: NodeSpec, options: Options, at_once: bool
) -> LeafArrived:
    """Open the leaf's request if it is not open yet, and return the leaf's arrival in it."""
    identity.open()
    return LeafArrived(
        identity.request,
        spec,
        identity.arrived_at,
        identity.deadline,
        options.on_full,
        at_once=at_once,
    )


def runs_in_loop() -> bool:
    """Tell whether an event loop runs in this thread, all of whose tasks a call here holds up."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def current_depth() -> int:
    """Return the longest remaining path of a leaf called in this context, in steps."""
    tell = leaf_depth.get()
    depth = tell() if tell is not None else None
    return UNKNOWN_DEPTH if depth is None else depth


async def settle(driver: Driver, leaf: AsyncLeaf, key: NodeKey) -> None:
    """Wait for a leaf; cancel it if the wait ends first."""
    try:
        await leaf.wait()
    except BaseException:  # cancelled, or closed with its loop
        driver.post(NodeCancelled(key))
        raise
