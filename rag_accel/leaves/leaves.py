"""Intercepted calls in the scheduler: borrowed ones are admitted, owned ones computed.

A borrowed call waits for a permit and then runs exactly where its caller is: same thread, same
loop, same context. An owned call hands its payload to an engine and waits for the value.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rag_accel.config import Options
from rag_accel.engine_api import EngineRequest, GenerationInput, PrimitiveKind, WorkId
from rag_accel.leaves.early_answers import EarlyAnswer
from rag_accel.leaves.early_beginnings import NotedPrompt
from rag_accel.leaves.held_up_loops import wait_beside
from rag_accel.leaves.identity import RequestIdentity, current_depth
from rag_accel.leaves.submitted_work import SubmittedWork, value_of
from rag_accel.scheduler.driver import (
    AsyncLeaf,
    AsyncStreamLeaf,
    BegunCall,
    Driver,
    KeptLeaf,
    SyncLeaf,
    SyncStreamLeaf,
    error_for,
)
from rag_accel.scheduler.messages import (
    CallEnded,
    EngineName,
    LeafArrived,
    LoopHeldUp,
    NodeCancelled,
    NodeKey,
    NodeSpec,
)
from rag_accel.system.loops import runs_in_loop


@dataclass(frozen=True, slots=True)
class Work:
    """A leaf as work of an owned engine.

    ``share`` is the single-flight key; it must hold everything the result depends on. ``obj`` is
    the object whose call it is, whose model is named in spans, if that is not the engine's.
    """

    engine: EngineName
    kind: PrimitiveKind
    payload: Any
    size: int = 1
    share: Hashable | None = None
    obj: Any = None


Call = Callable[[], None]


def _nothing() -> None:
    """Do nothing."""


class Leaves:
    """The leaves submitted to one driver; each caller waits in its own thread or task."""

    def __init__(self, driver: Driver, options: Options) -> None:
        self.driver = driver
        self._begin = driver.begin_call
        self._options = options

    def begin(
        self, identity: RequestIdentity, engine: EngineName, kind: PrimitiveKind, obj: Any = None
    ) -> BegunCall | None:
        """Return a borrowed call to start here and now if it need not wait; it must be ended.

        Args:
            identity: the run it belongs to.
            engine: the borrowed engine.
            kind: of the call.
            obj: whose call it is, if that is known; its model is named in spans.
        """
        if identity.beginnings is not None:
            identity.beginnings.leaf_begins()
        name = f"leaf{next(identity.ordinals)}"
        if identity.spans is not None:
            identity.spans.leaf(name, obj)
        begun = self._begin(
            identity.request,
            name,
            engine,
            kind,
            identity.arrived_at,
            identity.deadline,
        )
        if begun is not None:
            identity.last_call = begun
        return begun

    def permit(
        self, identity: RequestIdentity, engine: EngineName, kind: PrimitiveKind, obj: Any = None
    ) -> Permit:
        """Return a permit of a borrowed engine for one call, to hold while a block runs."""
        return Permit(self, identity, engine, kind, obj)

    def compute(
        self, identity: RequestIdentity, work: Work, prompt: NotedPrompt | None = None
    ) -> Any:
        """Return the value an owned engine computes; raises what it raised.

        Args:
            identity: the run it belongs to.
            work: the work to compute.
            prompt: its prompt, if that was recorded: it may have been answered early, and those
                that follow are.
        """
        if prompt is None:
            (value,) = self.compute_all(identity, [work])
            return value
        then = partial(prompt.begin_next, partial(self._begin_answer, identity))
        if (answer := prompt.ask()) is not None:
            then()
            if runs_in_loop():  # which owes its hand-overs, and is about to stand still
                self.driver.send_gathered()
            try:
                self.wait(identity, answer, answer.key)
            except BaseException:
                self.driver.post(NodeCancelled(answer.key))
                raise
            if (found := prompt.use(answer)) is not None:
                return found
        (value,) = self.compute_all(identity, [work], then)
        return value

    def compute_all(
        self, identity: RequestIdentity, work_items: Sequence[Work], then: Call = _nothing
    ) -> list[Any]:
        """Return the values of several work items, all submitted before the first is waited for.

        Args:
            identity: the run they belong to.
            work_items: the work to compute.
            then: called once they are submitted; must not raise.
        """
        waiting: deque[tuple[SyncLeaf, NodeKey, EngineName]] = deque()
        values: list[Any] = []
        try:
            for work in work_items:
                event, key = self._owned(identity, work, at_once=runs_in_loop())
                leaf = SyncLeaf(self._builder(identity, work, event))
                self.driver.submit(event, leaf)
                waiting.append((leaf, key, work.engine))
            then()
            while waiting:
                leaf, key, engine = waiting[0]
                self.wait(identity, leaf, key)
                waiting.popleft()
                values.append(value_of(leaf, engine))
        finally:
            for _, key, _ in waiting:
                self.driver.post(NodeCancelled(key))
        return values

    def wait(self, identity: RequestIdentity, leaf: SyncLeaf | KeptLeaf, key: NodeKey) -> None:
        """Wait in this thread for a leaf, which is let in if that holds up its run's loop."""
        loop = None if runs_in_loop() else identity.loop
        wait_beside(loop, leaf.wait, lambda: self.driver.post(LoopHeldUp(key)))

    async def settle(self, leaf: AsyncLeaf, key: NodeKey) -> None:
        """Wait for a leaf; cancel it if the wait ends first."""
        try:
            await leaf.wait()
        except BaseException:  # cancelled, or closed with its loop
            self.driver.post(NodeCancelled(key))
            raise

    async def acompute(
        self, identity: RequestIdentity, work: Work, prompt: NotedPrompt | None = None
    ) -> Any:
        """Do as ``compute`` without blocking the loop."""
        begin = partial(self._begin_answer, identity, together=True)
        if prompt is not None and (answer := prompt.ask()) is not None:
            prompt.begin_next(begin)
            try:
                await answer.wait_on_loop()
            except BaseException:  # cancelled, or closed with its loop
                self.driver.post(NodeCancelled(answer.key))
                raise
            if (found := prompt.use(answer)) is not None:
                return found
        event, key = self._owned(identity, work)
        leaf = AsyncLeaf(self.driver.later, self._builder(identity, work, event))
        self.driver.submit_together(event, leaf)
        if prompt is not None:
            prompt.begin_next(begin)
        await self.settle(leaf, key)
        return value_of(leaf, work.engine)

    def _begin_answer(
        self,
        identity: RequestIdentity,
        engine: EngineName,
        payload: GenerationInput,
        *,
        together: bool = False,
    ) -> EarlyAnswer:
        """Begin the answer of a call that a program has not made yet."""
        work = Work(engine, PrimitiveKind.DECODING, payload)
        spec = NodeSpec(identity.next_leaf(), engine, work.kind, depth=current_depth(), early=True)
        event = LeafArrived(identity.request, spec, identity.arrived_at, identity.deadline)
        # Streamed, so that what is dropped midway can be counted.
        build = self._builder(identity, work, event, stream=True)
        answer = EarlyAnswer(payload, build, NodeKey(identity.request, spec.name), engine)
        (self.driver.submit_together if together else self.driver.submit)(event, answer)
        return answer

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
        handed = SubmittedWork(self.driver)
        submit = self.driver.submit_together if together else self.driver.submit
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
            self.driver.submit(event, leaf)
            while pieces := leaf.take():
                yield from pieces
            has_ended = True
        finally:
            if not has_ended:
                self.driver.post(NodeCancelled(key))
        yield value_of(leaf, work.engine)

    async def astream(self, identity: RequestIdentity, work: Work) -> AsyncIterator[Any]:
        """Do as ``stream`` without blocking the loop."""
        work = replace(work, share=None)
        event, key = self._owned(identity, work)
        leaf = AsyncStreamLeaf(self.driver.later, self._builder(identity, work, event, stream=True))
        has_ended = False
        try:
            self.driver.submit_together(event, leaf)
            while pieces := await leaf.take():
                for piece in pieces:
                    yield piece
            has_ended = True
        finally:
            if not has_ended:
                self.driver.post(NodeCancelled(key))
        yield value_of(leaf, work.engine)

    def _owned(
        self, identity: RequestIdentity, work: Work, *, at_once: bool = False
    ) -> tuple[LeafArrived, NodeKey]:
        share = work.share if self._options.single_flight else None
        if share is not None:
            share = (self._options.namespace, work.kind, share)
            hash(share)  # what cannot be a key is this caller's error
        return self.arrive(identity, work.engine, work.kind, at_once, work.size, share, work.obj)

    def arrive(
        self,
        identity: RequestIdentity,
        engine: EngineName,
        kind: PrimitiveKind,
        at_once: bool,
        size: int = 1,
        share: Hashable | None = None,
        obj: Any = None,
    ) -> tuple[LeafArrived, NodeKey]:
        """Open the leaf's request if it is not open yet; return the leaf's arrival and its key."""
        spec = NodeSpec(
            identity.next_leaf(), engine, kind, depth=current_depth(), size=size, share=share
        )
        if identity.spans is not None:
            identity.spans.leaf(spec.name, obj)
        identity.open()
        if identity.beginnings is not None:
            identity.beginnings.leaf_begins()
        event = LeafArrived(
            identity.request,
            spec,
            identity.arrived_at,
            identity.deadline,
            self._options.on_full,
            at_once=at_once,
        )
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
                trace=identity.spans and identity.spans.headers(node.node),
            )

        return build


class Permit:
    """Permission for one borrowed call, held while a ``with`` or an ``async with`` block runs.

    Where nothing could refuse the call (its engine has no limit, less than half of ``max_requests``
    lives, the deadline is not over) it begins at once: it is counted here and reported once ended.
    Else it waits until the scheduler lets it in; what ends the waiting is raised.

    A class, because a coroutine that is closed while it waits in an async generator leaves that
    generator to the loop, which may be closed itself.
    """

    __slots__ = ("_begun", "_driver", "_engine", "_identity", "_key", "_kind", "_leaves", "_obj")

    def __init__(
        self,
        leaves: Leaves,
        identity: RequestIdentity,
        engine: EngineName,
        kind: PrimitiveKind,
        obj: Any = None,
    ) -> None:
        self._obj = obj
        self._leaves = leaves
        self._driver = leaves.driver
        self._identity = identity
        self._engine = engine
        self._kind = kind
        self._begun: BegunCall | None = None
        self._key: NodeKey | None = None

    @property
    def name(self) -> str:
        """Return the call's name in its request; "" before it has one."""
        return self._begun.name if self._begun is not None else self._key.node if self._key else ""

    def begin(self) -> bool:
        """Begin the call if it need not wait; ``give_back`` must follow then."""
        self._begun = self._leaves.begin(self._identity, self._engine, self._kind, self._obj)
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
            await self._leaves.settle(leaf, self._key)
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
        obj, self._obj = self._obj, None
        return self._leaves.arrive(self._identity, self._engine, self._kind, at_once, obj=obj)


def _raise_unless_granted(leaf: SyncLeaf | AsyncLeaf, engine: EngineName) -> None:
    if leaf.signal != "granted":
        assert leaf.outcome is not None, "a leaf ended without an outcome"
        error = error_for(leaf.outcome, leaf.result, engine)
        assert error is not None, "a permit ended as done before it was granted"
        raise error
