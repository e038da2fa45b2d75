"""Intercepted calls in the scheduler: borrowed ones are admitted, owned ones computed.

A borrowed call waits for a permit and then runs exactly where its caller is: same thread, same
loop, same context. An owned call hands its payload to an engine and waits for the value.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from rag_accel.config import Options
from rag_accel.engine_api import EngineRequest, PrimitiveKind, WorkId
from rag_accel.leaves.arrivals import arrival_of, current_depth, runs_in_loop, settle
from rag_accel.leaves.held_up_loops import wait_beside
from rag_accel.leaves.identity import RequestIdentity
from rag_accel.leaves.permits import Permit
from rag_accel.leaves.submitted_work import SubmittedWork, value_of
from rag_accel.scheduler.driver import (
    AsyncLeaf,
    AsyncStreamLeaf,
    BegunCall,
    Driver,
    KeptLeaf,
    SyncLeaf,
    SyncStreamLeaf,
)
from rag_accel.scheduler.messages import (
    EngineName,
    LeafArrived,
    LoopHeldUp,
    NodeCancelled,
    NodeKey,
    NodeSpec,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Work:
    """A leaf as work of an owned engine.

    ``share`` is the single-flight key; it must hold everything the result depends on.
    """

    engine: EngineName
    kind: PrimitiveKind
    payload: Any
    size: int = 1
    share: Hashable | None = None


class Leaves:
    """The leaves submitted to one driver; each caller waits in its own thread or task."""

    def __init__(self, driver: Driver, options: Options) -> None:
        self._driver = driver
        self._begin = driver.begin_call
        self._options = options

    def begin(
        self, identity: RequestIdentity, engine: EngineName, kind: PrimitiveKind
    ) -> BegunCall | None:
        """Return a borrowed call to start here and now if it need not wait; it must be ended."""
        begun = self._begin(
            identity.request,
            f"leaf{next(identity.ordinals)}",
            engine,
            kind,
            identity.arrived_at,
            identity.deadline,
        )
        if begun is not None:
            identity.last_call = begun
        return begun

    def permit(self, identity: RequestIdentity, engine: EngineName, kind: PrimitiveKind) -> Permit:
        """Return a permit of a borrowed engine for one call, to hold while a block runs."""
        return Permit(self, self._driver, self._options, identity, engine, kind)

    def compute(self, identity: RequestIdentity, work: Work) -> Any:
        """Return the value an owned engine computes; raises what it raised."""
        (value,) = self.compute_all(identity, [work])
        return value

    def compute_all(self, identity: RequestIdentity, work_items: Sequence[Work]) -> list[Any]:
        """Return the values of several work items, all submitted before the first is waited for."""
        waiting: deque[tuple[SyncLeaf, NodeKey, EngineName]] = deque()
        values: list[Any] = []
        try:
            for work in work_items:
                event, key = self._owned(identity, work, at_once=runs_in_loop())
                leaf = SyncLeaf(self._builder(identity, work, event))
                self._driver.submit(event, leaf)
                waiting.append((leaf, key, work.engine))
            while waiting:
                leaf, key, engine = waiting[0]
                self.wait(identity, leaf, key)
                waiting.popleft()
                values.append(value_of(leaf, engine))
        finally:
            for _, key, _ in waiting:
                self._driver.post(NodeCancelled(key))
        return values

    def wait(self, identity: RequestIdentity, leaf: SyncLeaf, key: NodeKey) -> None:
        """Wait in this thread for a leaf, which is let in if that holds up its run's loop."""
        loop = None if runs_in_loop() else identity.loop
        wait_beside(loop, leaf.wait, lambda: self._driver.post(LoopHeldUp(key)))

    async def acompute(self, identity: RequestIdentity, work: Work) -> Any:
        """Return the value an owned engine computes, without blocking the loop."""
        event, key = self._owned(identity, work)
        leaf = AsyncLeaf(self._driver.later, self._builder(identity, work, event))
        self._driver.submit_together(event, leaf)
        await settle(self._driver, leaf, key)
        return value_of(leaf, work.engine)

    def submit(
        self, identity: RequestIdentity, work_items: Sequence[Work], *, together: bool = False
    ) -> SubmittedWork:
        """Submit work whose values are taken later; what is not taken must be cancelled.

        Args:
            identity: the run they belong to.
            work_items: the work to compute.
            together: for a task, whether it goes with the work of the tasks that run next on its
                loop.
        """
        handed = SubmittedWork(self._driver)
        submit = self._driver.submit_together if together else self._driver.submit
        at_once = not together and runs_in_loop()
        try:
            for work in work_items:
                event, key = self._owned(identity, work, at_once=at_once)
                leaf = KeptLeaf(self._builder(identity, work, event))
                submit(event, leaf)
                handed.add(leaf, key, work.engine)
        except BaseException:
            handed.cancel()
            raise
        return handed

    def stream(self, identity: RequestIdentity, work: Work) -> Iterator[Any]:
        """Yield the text an owned engine makes, piece by piece, and the final value at the end.

        The work is submitted with the first step of the iterator; closing it cancels the work.
        """
        work = replace(work, share=None)  # who shares work gets its end only
        event, key = self._owned(identity, work, at_once=runs_in_loop())
        leaf = SyncStreamLeaf(self._builder(identity, work, event, stream=True))
        has_ended = False
        try:
            self._driver.submit(event, leaf)
            while pieces := leaf.take():
                yield from pieces
            has_ended = True
        finally:
            if not has_ended:
                self._driver.post(NodeCancelled(key))
        yield value_of(leaf, work.engine)

    async def astream(self, identity: RequestIdentity, work: Work) -> AsyncIterator[Any]:
        """Do as ``stream`` without blocking the loop."""
        work = replace(work, share=None)
        event, key = self._owned(identity, work)
        leaf = AsyncStreamLeaf(
            self._driver.later, self._builder(identity, work, event, stream=True)
        )
        has_ended = False
        try:
            self._driver.submit_together(event, leaf)
            while pieces := await leaf.take():
                for piece in pieces:
                    yield piece
            has_ended = True
        finally:
            if not has_ended:
                self._driver.post(NodeCancelled(key))
        yield value_of(leaf, work.engine)

    def _owned(
        self, identity: RequestIdentity, work: Work, *, at_once: bool = False
    ) -> tuple[LeafArrived, NodeKey]:
        share = work.share if self._options.single_flight else None
        if share is not None:
            share = (self._options.namespace, work.kind, share)
            hash(share)  # what cannot be a key is this caller's error
        spec = NodeSpec(
            identity.next_leaf(),
            work.engine,
            work.kind,
            depth=current_depth(),
            size=work.size,
            share=share,
        )
        event = arrival_of(identity, spec, self._options, at_once)
        return event, NodeKey(identity.request, spec.name)

    def _builder(
        self, identity: RequestIdentity, work: Work, event: LeafArrived, *, stream: bool = False
    ) -> Callable[[NodeKey], EngineRequest]:
        def build(node: NodeKey) -> EngineRequest:
            return EngineRequest(
                id=WorkId(f"{node.request}/{node.node}"),
                request_id=str(node.request),
                kind=work.kind,
                payload=work.payload,
                namespace=self._options.namespace,
                size=work.size,
                stream=stream,
                depth=event.node.depth,
                arrived_at=identity.arrived_at,
                deadline=identity.deadline,
            )

        return build
