"""One RAGraph request from its inputs to its result."""

from __future__ import annotations

import functools
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any

from rag_accel.engine_api import (
    EngineOutput,
    EngineRequest,
    GenerationOutput,
    PrimitiveKind,
    TokenUsage,
    WorkId,
)
from rag_accel.errors import EngineError, LoopLimitWarning
from rag_accel.graph.option_inputs import bound_attributes
from rag_accel.graph.primitives import Primitive
from rag_accel.graph.stages import Retry, retry_of
from rag_accel.graph.stages.retry import wait_s
from rag_accel.leaves.early_beginnings import Count
from rag_accel.leaves.identity import RequestIdentity
from rag_accel.profile.request_spans import result_attributes
from rag_accel.requests.early_prefills import EarlyPrefills
from rag_accel.requests.hosts import Host
from rag_accel.requests.kinds import checked, payload, stored
from rag_accel.requests.plan import FOLD, USER_CODE, GraphPlan, Progress, Region
from rag_accel.requests.prompts import Prefilled, as_text
from rag_accel.requests.read_ahead import texts_of
from rag_accel.requests.recovery import drawn
from rag_accel.requests.sliced_work import SlicedWork
from rag_accel.requests.speculations import Speculations
from rag_accel.requests.streams import LIST_ITEMS, Due, ItemForwarding
from rag_accel.requests.user_calls import user_call
from rag_accel.requests.values import Readable, Values
from rag_accel.scheduler.driver import BegunWork, Driver, Result, TextStream, error_for
from rag_accel.scheduler.messages import (
    CallEnded,
    NodeKey,
    NodeSpec,
    Outcome,
    RequestCancelled,
    RequestId,
)
from rag_accel.telemetry.spans import RequestSpans


class GraphRequest:
    """The driver's client for one request.

    ``granted``, ``ended`` and ``request_ended`` come from the scheduler's threads and run none of
    the user's code; ``request`` and ``partial`` come from the thread of an engine.
    """

    def __init__(
        self,
        plan: GraphPlan,
        inputs: Mapping[str, Any],
        driver: Driver,
        *,
        namespace: str,
        stream: bool = False,
        count: Count = lambda what, stage, amount=1: None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.id: RequestId = driver.new_request()
        self.outcome: Outcome | None = None
        self.error: BaseException | None = None
        #: tokens of its generations on owned engines that have ended
        self.usage = TokenUsage()
        #: by stage, how many further attempts there were, and how often its fallback ran
        self.retries: dict[str, int] = {}
        self.fallbacks: dict[str, int] = {}
        #: when it arrived and when it must have ended, on the driver's clock, once it has started
        self.arrived_at = 0.0
        self.deadline: float | None = None
        #: of what its program calls, if the graph is made of a program
        self.identity: RequestIdentity | None = None
        self._spans: RequestSpans | None = None
        self.stream = TextStream() if stream else None
        self.host: Host | None = None
        self._plan = plan
        self._driver = driver
        self._namespace = namespace
        self._inputs = inputs
        self._values = Values(plan.graph, inputs)
        self._work = SlicedWork(self._values)
        self._items = ItemForwarding()
        self._progress = Progress(plan)
        self._count = count
        self._jitter = jitter
        #: what fallbacks gave, by the primitive that ends with it
        self._instead: dict[str, Any] = {}
        self._growing = Lock()
        self._primitives: dict[str, Primitive] = {}
        #: those whose engines make no attempts of their own
        self._retried: set[str] = set()
        self._prefilled = Prefilled(driver)
        self._early = EarlyPrefills(driver, self.id, self._values, namespace, count)
        self._speculations = Speculations(driver, self.id, self._values, count)

    def start(self) -> tuple[NodeSpec, ...]:
        """Return the primitives that START sets free."""
        with self._growing:
            return self._take(self._progress.start())

    def note_spans(self, spans: RequestSpans) -> None:
        """Have the spans noted that its calls of user code make."""
        self._spans = spans
        if self.identity is not None:
            self.identity.spans = spans

    def arrived(self) -> None:
        """Begin early work, now that the scheduler has the request."""
        self._early.ended("")

    @property
    def program(self) -> str | None:
        """Return the name of the program that its graph is made of, None if it is of none."""
        return self._plan.program

    @property
    def is_over(self) -> bool:
        """Tell whether the outcome is known."""
        return self.outcome is not None

    def result(self, outputs: Sequence[str] | None = None) -> Any:
        """Return what the request produced, or raise what ended it. Reducers run here.

        Without ``outputs`` this is the value of the stage before END, or a dict by output name
        where several stages led there; with it, a dict of those values.
        """
        if self.error is not None:
            raise self.error
        if outputs is not None:
            return {name: self._values.read(name) for name in outputs}
        names = [name for name in self._progress.results() if self._values.has(name)]
        found = {name: self._values.read(name) for name in names}
        return next(iter(found.values())) if len(found) == 1 else found

    # An engine's thread ------------------------------------------------------------------------

    def request(self, node: NodeKey) -> EngineRequest | BegunWork:
        """Build the work of one primitive for its owned engine; may raise the user's errors.

        It may have been begun early, as exactly this work.
        """
        primitive = self._primitives[node.node]
        if self._retry(primitive) is not None:
            self._values.keep(primitive.inputs)
        work = self._work.payload(primitive)
        self._items.begin(primitive.name)
        self._prefilled.begin(primitive, work)
        self._early.look_up(primitive, work)
        request = replace(
            self._work_of(node, primitive, work),
            handle=self._prefilled.handle(primitive),
            is_retried=node.node in self._retried,
            provisional=self._speculations.asks(node.node),
        )
        return self._speculations.take(node.node, request, primitive.stage)

    def _work_of(self, node: NodeKey, primitive: Primitive, work: Any) -> EngineRequest:
        is_shown = self.stream is not None and self._progress.is_sure_to_be_last(primitive)
        return EngineRequest(
            id=WorkId(f"{node.request}/{node.node}"),
            request_id=str(node.request),
            kind=primitive.kind,
            payload=work,
            namespace=self._namespace,
            size=primitive.size,
            stream=is_shown or self._items.reads(primitive.name),
            depth=primitive.depth,
            arrived_at=self.arrived_at,
            deadline=self.deadline,
            trace=self._spans and self._spans.headers(node.node),
        )

    def _foreseen_work(
        self, node: NodeKey, primitive: Primitive, values: Readable
    ) -> EngineRequest:
        return self._work_of(node, primitive, payload(primitive, values))

    def partial(self, node: NodeKey, output: EngineOutput) -> bool:
        """Pass on streamed text, or the items of a list in it; look at what a search has so far."""
        if output.kind == "progress":
            self._speculations.revise(
                node.node, output.value, self._primitives, self._foreseen_work
            )
            return False
        if self._items.reads(node.node):
            self._end_items(self._items.feed(node.node, as_text(output.value)))
            return False
        host = self.host
        if self.stream is not None and host is not None:
            self.stream.put(as_text(output.value))
            host.wake()
        return True

    # Where an engine or a call failed ----------------------------------------------------------

    def retry_after_s(self, node: NodeKey, error: BaseException) -> float | None:
        """Return how long a failed primitive must wait for another attempt, ``None`` if for ever.

        A predicate of the user's may run here; what that raises is noted on the error.
        """
        primitive = self._primitives[node.node]
        retry = None if _is_fold(node) else self._retry(primitive)
        if retry is None or self.is_over:
            return None
        try:
            least_s = wait_s(retry, error)
        except Exception as wrong:
            error.add_note(f"Retry.on of {self._where(node)} raised {wrong!r}")
            return None
        if retry.attempts and isinstance(error, EngineError) and self._resumes(primitive):
            least_s = least_s or 0.0  # an engine that was renewed knows no handle of before
        # What was forwarded of a list is not made again.
        return least_s if least_s is not None and self._items.restart(node.node) else None

    def _resumes(self, primitive: Primitive) -> bool:
        return self._prefilled.handle(primitive) is not None

    def _retry(self, primitive: Primitive) -> Retry | None:
        return retry_of(self._plan.graph.by_name[primitive.stage])

    # The scheduler's threads -------------------------------------------------------------------

    def retried(self, node: NodeKey) -> None:
        """Learn that a primitive failed and is tried again."""
        primitive = self._primitives[node.node]
        self._prefilled.forget(primitive)
        self._speculations.close(primitive.stage)
        self.retries[primitive.stage] = self.retries.get(primitive.stage, 0) + 1
        self._count("retries", primitive.stage)

    def fell_back(self, node: NodeKey) -> None:
        """Learn that a stage's fallback runs, since one of its primitives failed for good."""
        stage = self._primitives[node.node].stage
        self._speculations.close(stage)
        self.fallbacks[stage] = self.fallbacks.get(stage, 0) + 1
        self._count("fallbacks", stage)

    def granted(self, node: NodeKey) -> None:
        """Hand a user call to the host; join the results of a stage's slices."""
        primitive = self._primitives[node.node]
        if primitive.kind is PrimitiveKind.AGGREGATE:
            self._join(node, primitive)
        elif primitive.kind is PrimitiveKind.PARTIAL_DECODING:
            self._end_items(self._items.granted(node, primitive))
        else:
            self._call(node, primitive)

    def _call(self, node: NodeKey, primitive: Primitive) -> None:
        host = self.host
        assert host is not None, "a request was started without a host"
        report = functools.partial(self._report, node, primitive)
        call = functools.partial(self._values.fold, primitive.inputs)
        if not _is_fold(node):
            keeps = self._retry(primitive) is not None
            call = user_call(
                primitive,
                self._values,
                self._plan.engines,
                lambda: not self.is_over,
                keeps,
                self.identity,
                self._spans,
            )
        try:
            host.run(call, report)
        except Exception as error:  # no thread could be had
            report(None, error)

    def ended(self, node: NodeKey, outcome: Outcome, result: Result | None, shared: bool) -> None:
        """Store a primitive's output."""
        if outcome == "done" and node.node in self._instead:
            self._end_replaced(node)
            return
        if outcome != "done" or result is None:
            self._fail(error_for(outcome, result, self._where(node)))
            return
        if _is_fold(node):
            return
        if isinstance(result.value, GenerationOutput):
            self.usage += TokenUsage.of(result.value)
        primitive = self._primitives[node.node]
        if (replaced := primitive.attribute("replaces")) is not None:
            self._instead[replaced] = result.value
        try:
            self._store(primitive, result)
            self._early.ended(node.node)
            self._speculations.ended(node.node, result.value, primitive.stage)
            self._end_items(self._items.ended(node.node, result.value))
        except Exception as error:  # an engine's value is not what its kind promises
            self._end_wrong(error)

    def _end_replaced(self, node: NodeKey) -> None:
        """Release what a primitive was to resume; its fallback has written its output."""
        value = self._instead.pop(node.node)
        self._prefilled.forget(self._primitives[node.node])
        try:
            self._end_items(self._items.ended(node.node, value))
        except Exception as error:  # the value is not what the stage promises
            self._end_wrong(error)

    def _end_wrong(self, error: Exception) -> None:
        self._fail(error)
        self._driver.post(RequestCancelled(self.id))

    def request_ended(self, outcome: Outcome, node: NodeKey | None) -> None:
        """Learn the outcome, free engine-owned state and wake the caller."""
        if outcome != "done":
            where = self._where(node) if node else f"request {self.id}"
            self._fail(error_for(outcome, None, where))
        self._prefilled.close()
        self._early.close()
        self._speculations.close()
        if self.identity is not None:
            self.identity.end()
        self.outcome = outcome
        for left in self._items.close():
            self._driver.report_call(CallEnded(left, LIST_ITEMS, False), Result())
        # The host may keep a reference to the holder of this.
        host, self.host = self.host, None
        if host is not None:
            host.wake()

    def _join(self, node: NodeKey, primitive: Primitive) -> None:
        # Short and internal: it need not wait until user code has left a thread.
        value: Any = None
        error: Exception | None = None
        try:
            value = self._work.joined(primitive)
        except Exception as found:  # an engine's value is not what its kind promises
            error = found
        self._tell(node, primitive, value, error)

    def _end_items(self, due: Sequence[Due]) -> None:
        for node, primitive, item in due:
            if item is None:
                self._call(node, primitive)
            else:
                self._tell(node, primitive, item, None)

    def _fail(self, error: BaseException | None) -> None:
        if self.error is None:
            self.error = error

    def _store(self, primitive: Primitive, result: Result) -> None:
        self._prefilled.ended(primitive, self._plan.engine_of(primitive), result.handle)
        if primitive.output is None:
            return
        if (engines := self._plan.hinted.get(primitive.output)) is not None:
            self._driver.hinted.send(texts_of(result.value), self._namespace, engines)
        value = self._prefilled.prompt(primitive) or stored(primitive, result.value)
        self._values.write(primitive.output, primitive.instance, value)

    # Where a call ran --------------------------------------------------------------------------

    def _report(
        self, node: NodeKey, primitive: Primitive, value: Any, error: BaseException | None
    ) -> None:
        """Tell the driver how a user call ended."""
        if error is None and primitive.kind is PrimitiveKind.CONDITION:
            self._decide(node, primitive, value)
            return
        if error is None and not _is_fold(node):
            try:
                value = checked(primitive, self._values, value)
            except Exception as found:
                error = found
        if error is None and self._spans is not None:
            self._spans.results[node.node] = result_attributes(primitive.kind, None, value)
        self._tell(node, primitive, value, error)

    def _decide(self, node: NodeKey, branch: Primitive, answer: Any) -> None:
        append: tuple[NodeSpec, ...] = ()
        error: Exception | None = None
        # Told while locked: what grows later may wait for what grew earlier, so the driver has
        # to hear of it in that order.
        with self._growing:
            try:
                region = self._progress.decide(branch, answer)
                if region.is_cut_off:
                    _warn_of_loop(branch.stage)
                append = self._take(region)
            except Exception as found:
                error = found
            self._tell(node, branch, None, error, append)
        self._early.ended("")

    def _tell(
        self,
        node: NodeKey,
        primitive: Primitive,
        value: Any,
        error: BaseException | None,
        append: tuple[NodeSpec, ...] = (),
    ) -> None:
        engine = USER_CODE if _is_fold(node) else self._plan.engine_of(self._primitives[node.node])
        least_s = None if error is None else self.retry_after_s(node, error)
        event = CallEnded(node, engine, error is None, append, least_s)
        self._driver.report_call(event, Result(value, error))

    # Growth ------------------------------------------------------------------------------------

    def _take(self, region: Region) -> tuple[NodeSpec, ...]:
        self._items.expect(region.primitives)
        self._early.expect(region.early)
        self._speculations.expect(region.speculated)
        self._primitives.update(region.by_node)
        for name in region.asking:
            primitive = region.by_node[name]
            told = bound_attributes(primitive.attributes, self._inputs)
            self._primitives[name] = replace(primitive, attributes=told)
        self._retried.update(name for name, retry in region.retries.items() if retry.replaces_own)
        return drawn(region.specs, region.retries, self._jitter)

    def _where(self, node: NodeKey) -> str:
        primitive = self._primitives.get(node.node)
        return f"stage {primitive.stage}" if primitive else f"request {node.request}"


def _is_fold(node: NodeKey) -> bool:
    return node.node.endswith(FOLD)


def _warn_of_loop(branch: str) -> None:
    text = (
        f"a loop turned as often as max_loops lets it: branch {branch!r} ended it with the values "
        "it has, as on_loop_limit='end' says"
    )
    warnings.warn(LoopLimitWarning(text), stacklevel=2)
