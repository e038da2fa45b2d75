"""Permits for borrowed calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rag_accel.config import Options
from rag_accel.engine_api import PrimitiveKind
from rag_accel.leaves.arrivals import arrival_of, current_depth, runs_in_loop, settle
from rag_accel.leaves.identity import RequestIdentity
from rag_accel.scheduler.driver import AsyncLeaf, BegunCall, Driver, SyncLeaf, error_for
from rag_accel.scheduler.messages import (
    CallEnded,
    EngineName,
    LeafArrived,
    NodeCancelled,
    NodeKey,
    NodeSpec,
)

if TYPE_CHECKING:
    from rag_accel.leaves.leaves import Leaves


class Permit:
    """Permission for one borrowed call, held while a ``with`` or an ``async with`` block runs.

    Where nothing could refuse the call (its engine has no limit, less than half of ``max_requests``
    lives, the deadline is not over) it begins at once: it is counted here and reported once ended.
    Else it waits until the scheduler lets it in; what ends the waiting is raised.

    A class, because a coroutine that is closed while it waits in an async generator leaves that
    generator to the loop, which may be closed itself.
    """

    __slots__ = (
        "_begun",
        "_driver",
        "_engine",
        "_identity",
        "_key",
        "_kind",
        "_leaves",
        "_options",
    )

    def __init__(
        self,
        leaves: Leaves,
        driver: Driver,
        options: Options,
        identity: RequestIdentity,
        engine: EngineName,
        kind: PrimitiveKind,
    ) -> None:
        self._leaves = leaves
        self._driver = driver
        self._options = options
        self._identity = identity
        self._engine = engine
        self._kind = kind
        self._begun: BegunCall | None = None
        self._key: NodeKey | None = None

    def begin(self) -> bool:
        """Begin the call if it need not wait; ``give_back`` must follow then."""
        self._begun = self._leaves.begin(self._identity, self._engine, self._kind)
        if self._begun is None:
            return False
        self._begun.start()
        return True

    def wait(self) -> None:
        """Wait in this thread until the call is let in; ``give_back`` must follow.

        Where an event loop runs in this thread, what holds the permits may be its tasks: then the
        call is let in, or refused, whatever the bounds.
        """
        event, self._key = self._arrive(at_once=runs_in_loop())
        leaf = SyncLeaf()
        try:
            self._driver.submit(event, leaf)
            self._leaves.wait(self._identity, leaf, self._key)
            _raise_unless_granted(leaf, self._engine)
        except BaseException:
            self._driver.post(NodeCancelled(self._key))
            self.give_back(ok=False)
            raise

    async def wait_on_loop(self) -> None:
        """Do as ``wait`` without blocking the loop."""
        event, self._key = self._arrive(at_once=False)
        leaf = AsyncLeaf(self._driver.later, lost=lambda: self.give_back(ok=False))
        try:
            self._driver.submit(event, leaf)
            await settle(self._driver, leaf, self._key)
            _raise_unless_granted(leaf, self._engine)
        except BaseException:
            self.give_back(ok=False)
            raise

    def give_back(self, ok: bool) -> None:
        """Say that the call has returned, or raised."""
        if self._begun is not None:
            self._begun.end(ok)
        elif self._key is not None:
            self._driver.post(CallEnded(self._key, self._engine, ok))

    def __enter__(self) -> None:
        if not self.begin():
            self.wait()

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.give_back(kind is None)

    async def __aenter__(self) -> None:
        if not self.begin():
            await self.wait_on_loop()

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.give_back(kind is None)

    def _arrive(self, *, at_once: bool) -> tuple[LeafArrived, NodeKey]:
        identity = self._identity
        spec = NodeSpec(identity.next_leaf(), self._engine, self._kind, depth=current_depth())
        event = arrival_of(identity, spec, self._options, at_once)
        return event, NodeKey(identity.request, spec.name)


def _raise_unless_granted(leaf: SyncLeaf | AsyncLeaf, engine: EngineName) -> None:
    if leaf.signal != "granted":
        assert leaf.outcome is not None, "a leaf ended without an outcome"
        error = error_for(leaf.outcome, leaf.result, engine)
        assert error is not None, "a permit ended as done before it was granted"
        raise error
