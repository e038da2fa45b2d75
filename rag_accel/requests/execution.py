"""Runs of RAGraphs, compiled or not: blocking, awaited, streamed, or handed out as a handle."""

from __future__ import annotations

import random
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rag_accel.config import OnFull, Options
from rag_accel.engine_api import TokenUsage
from rag_accel.errors import BusyError, ConfigError, DeadlineError, GraphError
from rag_accel.graph.frozen import FrozenRAGraph
from rag_accel.graph.ragraph import RAGraph
from rag_accel.leaves.call_pool import CallPool
from rag_accel.leaves.early_beginnings import Count
from rag_accel.leaves.identity import RequestIdentity
from rag_accel.passes.manager import passes_estimated, passes_named
from rag_accel.requests.engines import NamedEngine
from rag_accel.requests.hosts import AsyncHost, PoolHost, SyncHost, WeakHost
from rag_accel.requests.plan import GraphPlan
from rag_accel.requests.prompts import as_text
from rag_accel.requests.request import GraphRequest
from rag_accel.scheduler.driver import Driver
from rag_accel.scheduler.messages import RequestArrived, RequestCancelled, RequestId
from rag_accel.system.loops import runs_in_loop
from rag_accel.telemetry.spans import RequestSpans

Graph = RAGraph | FrozenRAGraph


@dataclass(frozen=True, slots=True)
class CountedResult:
    """A request's result, with how often its stages failed.

    Args:
        output: the value before END.
        retries: further attempts that its stages had, by stage.
        fallbacks: how often the fallbacks of its stages ran, by stage.
    """

    output: Any
    retries: Mapping[str, int]
    fallbacks: Mapping[str, int]


class RunHandle:
    """A request that runs on its own, whose result can be fetched and which can be cancelled."""

    def __init__(
        self, run: GraphRequest, execution: Execution, outputs: Sequence[str] | None
    ) -> None:
        self._run = run
        # Also keeps an accelerator open that is not held elsewhere any more.
        self._execution = execution
        self._outputs = outputs
        self._over = threading.Event()
        self._told: list[Callable[[], None]] = []

    def when_over(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` once this has ended; perhaps more than once, and perhaps at once.

        Mostly this is the scheduler's thread: ``tell`` must neither block nor run user code.
        """
        self._told.append(tell)
        self.look()

    def result(self, timeout_s: float | None = None) -> Any:
        """Wait for the result; raises what ended the request.

        Raises:
            DeadlineError: if it has not ended after ``timeout_s``; it runs on.
        """
        if not self._over.wait(timeout_s):
            raise DeadlineError(
                "no result yet", where=f"request {self._run.id}", hint="wait again, or cancel()"
            )
        return self._run.result(self._outputs)

    def cancel(self) -> None:
        """End the request; ``result`` then raises RequestCancelledError."""
        self._execution.cancel(self._run)

    @property
    def done(self) -> bool:
        """Tell whether it has ended."""
        return self._over.is_set()

    @property
    def usage(self) -> TokenUsage:
        """Return the tokens of its generations on owned engines that have ended so far.

        A generation whose result other requests share counts in each of them.
        """
        return self._run.usage

    @property
    def retries(self) -> Mapping[str, int]:
        """Return how many further attempts its stages have had so far, by stage; see ``Retry``."""
        return dict(self._run.retries)

    @property
    def fallbacks(self) -> Mapping[str, int]:
        """Return how often the fallbacks of its stages have run so far, by stage."""
        return dict(self._run.fallbacks)

    def look(self) -> None:
        """Notice the outcome once there is one; called by the scheduler."""
        if self._run.is_over:
            self._over.set()
            for tell in list(self._told):
                tell()


class Execution:
    """Plans of graphs and requests of one driver: what the verbs of ``CompiledGraph`` share."""

    def __init__(
        self,
        driver: Driver,
        pool: CallPool,
        options: Options,
        engines: Callable[[FrozenRAGraph], Mapping[str, NamedEngine]],
        count: Count = lambda what, stage, amount=1: None,
        jitter: Callable[[], float] = random.random,
        identify: Callable[[GraphRequest, str], RequestIdentity] | None = None,
        spans: Callable[[RequestId, str, float | None], RequestSpans] | None = None,
    ) -> None:
        self._driver = driver
        self._pool = pool
        self._options = options
        self._engines = engines
        self._count = count
        self._jitter = jitter
        self._identify = identify
        self._spans = spans
        self._passes = passes_named(options.passes)
        self._estimated = passes_estimated(options.passes)

    def submit(
        self, run: GraphRequest, outputs: Sequence[str] | None, deadline_s: float | None
    ) -> RunHandle:
        """Start a request whose user code runs in the accelerator's threads.

        Raises:
            BusyError: if the bound on live requests is reached.
        """
        handle = RunHandle(run, self, outputs)
        run.host = PoolHost(self._pool, handle.look)
        self.start(run, deadline_s, "raise")
        self._driver.ask(lambda: None)  # by then the request was let in or refused
        if run.is_over and isinstance(run.error, BusyError):
            raise run.error
        return handle

    def cancel(self, run: GraphRequest) -> None:
        """End a request whose caller does not want it any more."""
        self._driver.post(RequestCancelled(run.id))

    def make(
        self,
        graph: Graph,
        inputs: Mapping[str, Any],
        outputs: Sequence[str] | None = None,
        stream: bool = False,
    ) -> GraphRequest:
        """Return a request that has not started. Raises GraphError if its inputs do not fit."""
        plan = self.plan(graph, is_alone=self._driver.num_live == 0)
        plan.check_fields()
        inputs = _complete(plan.graph, inputs)
        plan.check_options(inputs)
        if outputs is not None:
            _check_outputs(plan.graph, outputs)
        return GraphRequest(
            plan,
            inputs,
            self._driver,
            namespace=self._options.namespace,
            stream=stream,
            count=self._count,
            jitter=self._jitter,
        )

    def plan(self, graph: Graph, *, is_alone: bool = False) -> GraphPlan:
        """Return the graph as it is compiled for the engines there are now; kept with the graph.

        Args:
            graph: what is compiled.
            is_alone: whether no other request lives. Only then are passes on that overlap work of
                one request: where several live, the engines have work of the others to overlap.

        Raises:
            GraphError: if the graph breaks a rule, or these engines cannot run it.
        """
        frozen = graph.freeze()
        engines = self._engines(frozen)
        estimated = self._estimated if is_alone else frozenset[str]()
        plans: dict[frozenset[str], GraphPlan] = frozen.made.setdefault(self, {})
        plan = plans.get(estimated)  # other threads add plans meanwhile
        if plan is None or plan.given is not engines:
            options = self._options.max_loops, self._passes, estimated
            records = next((plan.records for plan in list(plans.values())), None)
            plan = GraphPlan(frozen, engines, *options, records)
            plan.check()
            plans[estimated] = plan
        return plan

    def start(
        self, run: GraphRequest, deadline_s: float | None, on_full: OnFull | None = None
    ) -> None:
        """Let the scheduler have a request; ``on_full`` in the place of the option."""
        now = self._driver.now()
        limit = self._limit(deadline_s)
        deadline = None if limit is None else now + limit
        run.arrived_at, run.deadline = now, deadline
        if self._identify is not None and (program := run.program) is not None:
            run.identity = self._identify(run, program)
        if self._spans is not None:
            run.note_spans(self._spans(run.id, run.program or "RAGraph", limit).begin())
        event = RequestArrived(run.id, run.start(), now, deadline, on_full or self._options.on_full)
        self._driver.submit(event, run)
        run.arrived()

    def _limit(self, deadline_s: float | None) -> float | None:
        limit = self._options.deadline_s if deadline_s is None else deadline_s
        if limit is not None and not limit >= 0:
            raise ConfigError("bad deadline", where="deadline_s", found=limit, valid="from 0")
        return limit

    def sync_host(self, run: GraphRequest, deadline_s: float | None) -> SyncHost:
        """Return a request's host, by which its user code runs in this thread if it can."""
        bounded = self._limit(deadline_s) is not None
        # Inside a running loop (a notebook's) an async call cannot run in this thread.
        inline = not bounded and not runs_in_loop()
        host = run.host = SyncHost(self._pool, inline, lambda: self._left(run))
        return host

    def async_host(self, run: GraphRequest) -> AsyncHost:
        """Return a request's host, by which its async user code runs on this loop."""
        host = AsyncHost(self._pool, self._driver, lambda: self._left(run))
        run.host = WeakHost(host)
        return host

    def _left(self, run: GraphRequest) -> None:
        if not run.is_over:
            self.cancel(run)


def _complete(graph: FrozenRAGraph, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a request's inputs with None for the optional inputs that it leaves out."""
    given = {**dict.fromkeys(graph.optional), **inputs}
    wanted = set(graph.inputs)
    if wanted != set(given):
        raise GraphError(
            "the inputs do not fit the graph",
            found=", ".join(sorted(inputs)) or "none",
            valid=", ".join(sorted(wanted)) or "none",
            hint="give exactly these as keyword arguments, or declare RAGraph(inputs=...)",
        )
    return given


def _check_outputs(graph: FrozenRAGraph, outputs: Sequence[str]) -> None:
    known = dict.fromkeys([*graph.inputs, *(s.output for s in graph.stages if s.output)])
    unknown = [name for name in outputs if name not in known]
    if unknown:
        raise GraphError(
            "nothing writes these outputs", found=", ".join(unknown), valid=", ".join(known)
        )


class CompiledGraph:
    """A graph for the engines of one accelerator (``Accelerator.compile``), and its runs.

    Running the graph itself does the same work once, on its first run; compiling it does so
    beforehand, and raises beforehand what is wrong with it. Engines that are added later are known
    here too.
    """

    def __init__(self, execution: Execution, graph: FrozenRAGraph) -> None:
        self._execution, self.graph = execution, graph

    def run(
        self,
        /,
        *,
        outputs: Sequence[str] | None = None,
        deadline_s: float | None = None,
        **inputs: Any,
    ) -> Any:
        """Run it and return its result. Raises as ``Accelerator.run``."""
        run = self._execution.make(self.graph, inputs, outputs)
        with self._execution.sync_host(run, deadline_s) as host:
            self._execution.start(run, deadline_s)
            while not run.is_over:
                host.attend()
        return run.result(outputs)

    async def arun(
        self,
        /,
        *,
        outputs: Sequence[str] | None = None,
        deadline_s: float | None = None,
        **inputs: Any,
    ) -> Any:
        """Run it without blocking the loop. Raises as ``Accelerator.run``."""
        return (await self._awaited(inputs, deadline_s, outputs)).result(outputs)

    async def arun_counted(
        self, inputs: Mapping[str, Any], *, deadline_s: float | None = None
    ) -> CountedResult:
        """Run it as ``arun``; return its result with its retries and fallbacks by stage."""
        run = await self._awaited(inputs, deadline_s)
        return CountedResult(run.result(), dict(run.retries), dict(run.fallbacks))

    async def _awaited(
        self,
        inputs: Mapping[str, Any],
        deadline_s: float | None,
        outputs: Sequence[str] | None = None,
    ) -> GraphRequest:
        run = self._execution.make(self.graph, inputs, outputs)
        async with self._execution.async_host(run) as host:
            self._execution.start(run, deadline_s)
            while not run.is_over:
                await host.attend()
        return run

    def stream(self, /, *, deadline_s: float | None = None, **inputs: Any) -> Iterator[str]:
        """Yield the text of its last generation as it is made. Raises as ``Accelerator.run``."""
        run = self._execution.make(self.graph, inputs, stream=True)
        assert run.stream is not None, "a streaming run has a stream"
        said = is_over = False
        with self._execution.sync_host(run, deadline_s) as host:
            self._execution.start(run, deadline_s)
            while not is_over:
                host.attend()
                is_over = run.is_over  # looked at first: what was written before the end is taken
                for text in run.stream.take():
                    said = True
                    yield text
        whole = run.result()
        if not said:
            yield as_text(whole)

    def astream(self, /, *, deadline_s: float | None = None, **inputs: Any) -> AsyncIterator[str]:
        """Yield the text of its last generation on this loop. Raises as ``Accelerator.run``."""
        return self.astream_written(inputs, as_text, deadline_s=deadline_s)

    async def astream_written(
        self,
        inputs: Mapping[str, Any],
        write: Callable[[Any], str],
        *,
        deadline_s: float | None = None,
    ) -> AsyncIterator[str]:
        """Yield text as ``astream``; ``write`` makes it of a result that no generation streams."""
        run = self._execution.make(self.graph, inputs, stream=True)
        assert run.stream is not None, "a streaming run has a stream"
        said = is_over = False
        async with self._execution.async_host(run) as host:
            self._execution.start(run, deadline_s)
            while not is_over:
                await host.attend()
                is_over = run.is_over  # looked at first: what was written before the end is taken
                for text in run.stream.take():
                    said = True
                    yield text
        whole = run.result()
        if not said:
            yield write(whole)

    def submit(
        self,
        /,
        *,
        outputs: Sequence[str] | None = None,
        deadline_s: float | None = None,
        **inputs: Any,
    ) -> RunHandle:
        """Start it and return a handle at once. Raises as ``Accelerator.submit``."""
        run = self._execution.make(self.graph, inputs, outputs)
        return self._execution.submit(run, outputs, deadline_s)
