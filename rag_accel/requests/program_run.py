"""A translated program's graph, made of Functions alone, run as a request known beforehand.

The request's identity travels through the program's config before the first function runs, so that
the models and retrievers it calls are leaves of the very same request. A blocking caller's thread
runs functions whatever loop or deadline it has, as the plain program would; other threads run what
may run at the same time. A graph of one function has nothing to schedule but those leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any

from rag_accel.graph.frozen import FrozenRAGraph
from rag_accel.graph.stages import Function
from rag_accel.leaves.identity import RequestIdentity
from rag_accel.requests.hosts import AsyncHost, SyncHost
from rag_accel.requests.plan import GraphPlan
from rag_accel.requests.request import GraphRequest
from rag_accel.scheduler.messages import (
    RequestArrived,
    RequestCancelled,
    RequestClosed,
    RequestOpened,
)

#: functions that run on after their request's outcome was known
_running_on: set[asyncio.Task[None]] = set()


class ProgramRun:
    """One run of a graph; ``has_begun`` tells whether any of its functions may have run.

    Args:
        identity: the request it is.
        graph: a verified graph of Functions with one input.
    """

    def __init__(self, identity: RequestIdentity, graph: FrozenRAGraph) -> None:
        self.has_begun = False
        self._identity = identity
        self._graph = graph
        self._accelerator = identity.accelerator
        self._driver = identity.accelerator._driver

    def run(self, value: Any, known: Callable[[], Any]) -> Any:
        """Return the graph's result for its input; raises what a function raised.

        Args:
            known: returns the result once the last function has returned it, else ``None``.

        Raises:
            ClosedError: the accelerator is closed.
            ForkedError: in a forked child.
            BusyError: the bound on live requests is reached, and ``on_full`` is ``raise``.
            DeadlineError: the request's deadline has passed.
        """
        if len(self._graph.stages) == 1:
            with self._opened():
                return self._function()(value)
        run = self._make(value)
        with SyncHost(self._accelerator.calls, True, lambda: self._left(run, known())) as host:
            run.host = host
            self._start(run)
            while not run.is_over:
                host.attend()
                if (result := known()) is not None:
                    return result
        return run.result()

    async def arun(
        self, value: Any, known: asyncio.Future[Any], runs_on: Callable[[Any], bool]
    ) -> Any:
        """Return the graph's result; functions run on this loop. Raises as ``run``.

        Args:
            known: resolved with the result as soon as there is one.
            runs_on: tells of such a result whether other functions are to run on.
        """
        if len(self._graph.stages) == 1:
            with self._opened():
                return await self._function()(value)
        run = self._make(value)
        host = AsyncHost(self._accelerator.calls, self._driver, lambda: self._left(run, known))
        known.add_done_callback(lambda _: host.wake())
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(host)
            run.host = host
            self._start(run)
            while not run.is_over:
                await host.attend()
                if not known.done():
                    continue
                if runs_on(known.result()) and not run.is_over:
                    _run_on(run, host, stack.pop_all())
                return known.result()
        return run.result()

    @contextmanager
    def _opened(self) -> Iterator[None]:
        """Let the request live while the block runs, for the leaves that its code will bring."""
        identity = self._identity
        self.has_begun = True
        event = RequestOpened(
            identity.request, identity.program, identity.arrived_at, identity.deadline
        )
        self._driver.post(event)
        try:
            yield
        finally:
            self._driver.post(RequestClosed(identity.request, self._driver.now()))

    def _function(self) -> Callable[..., Any]:
        (stage,) = self._graph.stages
        assert isinstance(stage, Function), "a translated program is made of functions"
        return stage.fn

    def _make(self, value: Any) -> GraphRequest:
        options = self._accelerator.options
        (name,) = self._graph.inputs
        plan: GraphPlan | None = self._graph.made.get(self._accelerator)
        if plan is None:
            # A translated program fixes its own order: no pass.
            plan = GraphPlan(self._graph, {}, options.max_loops, frozenset())
            self._graph.made[self._accelerator] = plan
        run = GraphRequest(plan, {name: value}, self._driver, namespace=options.namespace)
        run.id = self._identity.request
        return run

    def _start(self, run: GraphRequest) -> None:
        identity = self._identity
        on_full = self._accelerator.options.on_full
        run.arrived_at, run.deadline = identity.arrived_at, identity.deadline
        event = RequestArrived(run.id, run.start(), identity.arrived_at, identity.deadline, on_full)
        self._driver.submit(event, run)
        self.has_begun = True

    def _left(self, run: GraphRequest, known: Any) -> None:
        is_known = known.done() if isinstance(known, asyncio.Future) else known is not None
        if not run.is_over and not is_known:
            self._driver.post(RequestCancelled(run.id))


def _run_on(run: GraphRequest, host: AsyncHost, stack: AsyncExitStack) -> None:
    """Serve a run on this loop until it is over, without a caller that waits for its result."""

    async def serve() -> None:
        async with stack:
            while not run.is_over:
                await host.attend()

    task = asyncio.get_running_loop().create_task(serve())
    _running_on.add(task)
    task.add_done_callback(_running_on.discard)
