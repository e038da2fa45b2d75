"""Work items that an owned engine computes before anyone waits for their values."""

from __future__ import annotations

import copy
from typing import Any

from rag_accel.scheduler.driver import AsyncLeaf, Driver, KeptLeaf, SyncLeaf, error_for
from rag_accel.scheduler.messages import EngineName, LoopHeldUp, NodeCancelled, NodeKey
from rag_accel.system.loops import runs_in_loop


class SubmittedWork:
    """Work items submitted together; each value may be taken any number of times.

    Args:
        driver: schedules them.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._leaves: list[tuple[KeptLeaf, NodeKey, EngineName]] = []

    def add(self, leaf: KeptLeaf, key: NodeKey, engine: EngineName) -> None:
        """Keep one that has been submitted."""
        self._leaves.append((leaf, key, engine))

    def value(self, at: int) -> Any:
        """Return the value of a work item, by its place; raises what its engine raised."""
        leaf, key, engine = self._leaves[at]
        if not leaf.is_over and runs_in_loop():
            # Neither the hand-over that this loop owes nor those it runs may be waited for.
            self._driver.send_gathered()
            self._driver.post(LoopHeldUp(key))
        leaf.wait()
        return value_of(leaf, engine)

    async def avalue(self, at: int) -> Any:
        """Do as ``value`` without blocking the loop."""
        leaf, _, engine = self._leaves[at]
        await leaf.wait_on_loop()
        return value_of(leaf, engine)

    def cancel(self) -> None:
        for leaf, key, _ in self._leaves:
            if not leaf.is_over:
                self._driver.post(NodeCancelled(key))


def value_of(leaf: SyncLeaf | AsyncLeaf | KeptLeaf, engine: EngineName) -> Any:
    """Return the value of an owned leaf that has ended; raises what it ended with."""
    assert leaf.outcome is not None, "a leaf ended without an outcome"
    error = error_for(leaf.outcome, leaf.result, engine)
    if error is not None:
        raise error
    assert leaf.result is not None, "an owned leaf ended as done without a result"
    return copy.deepcopy(leaf.result.value) if leaf.shared else leaf.result.value
