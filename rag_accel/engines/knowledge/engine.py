"""The engine of a knowledge graph: one call a step for the hops of all requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rag_accel.clock import Clock, MonotonicClock
from rag_accel.engine_api import (
    Capability,
    EngineOutput,
    EngineProfile,
    EngineRequest,
    IngestBatch,
    LatencyModel,
    PrimitiveKind,
    StepBudget,
    WorkId,
)
from rag_accel.engines.bases import OwnEngine
from rag_accel.engines.batching import StepDeadline
from rag_accel.engines.knowledge import calls
from rag_accel.engines.knowledge.checks import fault
from rag_accel.engines.knowledge.protocol import GraphView, KnowledgeGraph, RemoteGraph, RemoteView
from rag_accel.engines.knowledge.remote import RemoteQueries
from rag_accel.errors import EngineError

_Call = Callable[[GraphView, Sequence[EngineRequest]], Sequence[Any]]
_Groups = Sequence[tuple[GraphView, list[EngineRequest]]]

#: Kinds of work nearest to a result go first.
_ORDER = (
    PrimitiveKind.INGESTION,
    PrimitiveKind.PRUNING,
    PrimitiveKind.EXPANDING,
    PrimitiveKind.SEARCHING,
)
_COUNTED = ("link_calls", "link_requests", "hop_calls", "hop_requests")


class KnowledgeEngine(OwnEngine):
    """An engine for the work of ``GraphRetrieval`` stages over one graph, or one for each tenant.

    SEARCHING (``LinkQuery``) finds the entities that are meant, EXPANDING (``ExpandBatch``) makes
    one hop, PRUNING (``PruneBatch``) chooses paths. In a step the hops of all waiting requests are
    one call of the graph, and so are their searches; tenants never share a call. All hops of a
    request see the version that its search saw. INGESTION (``IngestBatch``) gives entities, by the
    ids of documents, their vectors, where the graph keeps some.

    Work ends in ``error`` where its payload is malformed, where it names a tenant without a graph
    or paths of another tenant, and where the graph raises for it alone; other work is not touched.

    Args:
        graphs: the graph of all tenants, or one for each ``namespace``.
        max_batch: requests worth putting into one step.
        max_threads: threads a step can use, 0 where the graph computes elsewhere.
        latency: first guess of a step's time.
        clock: measures ``StepBudget.time_s``.
    """

    def __init__(
        self,
        graphs: KnowledgeGraph | Mapping[str, KnowledgeGraph],
        *,
        max_batch: int = 256,
        max_threads: int = 1,
        latency: LatencyModel | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._graphs = graphs
        self._clock = clock or MonotonicClock()
        self._waiting: dict[WorkId, EngineRequest] = {}
        self._outputs: list[EngineOutput] = []
        self._counts: Counter[str] = Counter(dict.fromkeys(_COUNTED, 0))
        is_remote = any(isinstance(graph, RemoteGraph) for graph in self._given())
        #: None if all graphs are read by the step itself
        self._remote = RemoteQueries(self._clock, self._counts, self._given) if is_remote else None
        waiting = frozenset({Capability.BOUNDS_ITS_WORK})
        profile = EngineProfile(
            kinds=frozenset(_ORDER),
            max_batch=max_batch,
            latency=latency or LatencyModel(base_s=0.0005, per_item_s=0.00005),
            max_threads=max_threads,
            stepped=True,
            interruptible=is_remote,
            capabilities=waiting if is_remote else frozenset(),
        )
        super().__init__(profile)

    def copy(self) -> KnowledgeEngine:
        """Return another engine over the same graphs: one engine is one accelerator's."""
        told = self._profile
        return KnowledgeEngine(
            self._graphs,
            max_batch=told.max_batch,
            max_threads=told.max_threads,
            latency=told.latency,
            clock=self._clock,
        )

    @property
    def counts(self) -> Mapping[str, int]:
        """Return how many calls of the graph were made, and for how many requests."""
        return self._counts

    def submit(self, work: Sequence[EngineRequest]) -> None:
        for request in work:
            error = fault(request)
            if error is None:
                self._waiting[request.id] = request
            else:
                self._fail(request, error)

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        """Answer waiting work kind by kind, as long as the time lasts.

        If nothing can be answered here, wait for a server up to ``budget.time_s``, or until
        interrupted.
        """
        deadline = StepDeadline(self._clock, budget.time_s)
        for kind in _ORDER:
            work = [request for request in self._waiting.values() if request.kind is kind]
            if work and deadline.may_start():
                self._answer(kind, work)
                for request in work:
                    self._waiting.pop(request.id, None)
        outputs, self._outputs = self._outputs, []
        if self._remote is not None:
            outputs += self._remote.step(0.0 if outputs else budget.time_s)
        return outputs

    def cancel(self, ids: Sequence[WorkId]) -> None:
        gone = set(ids)
        for work in gone:
            self._waiting.pop(work, None)
        self._outputs = [output for output in self._outputs if output.id not in gone]
        if self._remote is not None:
            self._remote.cancel(gone)

    def interrupt(self) -> None:
        if self._remote is not None:
            self._remote.interrupt()

    def close(self) -> None:
        """Forget all work and end the threads; the graphs stay the caller's."""
        self._waiting.clear()
        self._outputs.clear()
        if self._remote is not None:
            self._remote.close()

    def _answer(self, kind: PrimitiveKind, work: Sequence[EngineRequest]) -> None:
        if kind is PrimitiveKind.SEARCHING:
            self._call("link", self._by_view(work, self._present), calls.link)
        elif kind is PrimitiveKind.EXPANDING:
            self._call(
                "hop", self._by_view(work, lambda request: request.payload.paths.view), calls.hop
            )
        else:
            is_pruning = kind is PrimitiveKind.PRUNING
            run = (lambda request: calls.prune(request.payload)) if is_pruning else self._ingest
            for request in work:
                self._alone(request, run)

    def _by_view(
        self, work: Sequence[EngineRequest], view_of: Callable[[EngineRequest], GraphView]
    ) -> _Groups:
        """Return the work of each view and tenant; work without a view fails.

        Work of a graph on a server is handed on, and left out.
        """
        groups: dict[tuple[int, str], tuple[GraphView, list[EngineRequest]]] = {}
        for request in work:
            try:
                view = view_of(request)
                is_handed_on = self._hand_on(request, view)
            except Exception as error:
                self._fail(request, error)
                continue
            if not is_handed_on:
                groups.setdefault((id(view), request.namespace), (view, []))[1].append(request)
        return list(groups.values())

    def _call(self, name: str, groups: _Groups, call: _Call) -> None:
        """Make one call for each view; where it raises for some, one for each request."""
        for view, work in groups:
            self._counts[f"{name}_calls"] += 1
            self._counts[f"{name}_requests"] += len(work)
            try:
                values = call(view, work)
            except Exception as error:
                if len(work) == 1:
                    self._fail(work[0], error)
                else:
                    self._call(name, [(view, [request]) for request in work], call)
            else:
                for request, value in zip(work, values, strict=True):
                    self._outputs.append(EngineOutput(request.id, "final", value=value))

    def _alone(self, request: EngineRequest, run: Callable[[EngineRequest], object]) -> None:
        try:
            value = run(request)
        except Exception as error:
            self._fail(request, error)
        else:
            self._outputs.append(EngineOutput(request.id, "final", value=value))

    def _hand_on(self, request: EngineRequest, view: GraphView) -> bool:
        """Let threads ask a graph on a server; tell whether it is one."""
        if self._remote is None or not isinstance(view, RemoteView):
            return False
        graph = self._graph(request)
        if not isinstance(graph, RemoteGraph):
            return False
        self._remote.put(graph, view, request)
        return True

    def _present(self, request: EngineRequest) -> GraphView:
        graph = self._graph(request)
        if self._remote is not None and isinstance(graph, RemoteGraph):
            return self._remote.view(graph)
        return graph.view()

    def _ingest(self, request: EngineRequest) -> tuple[str, ...]:
        batch: IngestBatch = request.payload
        graph = self._graph(request)
        keep = getattr(graph, "set_vectors", None)
        if keep is None:
            raise EngineError(
                "this knowledge graph keeps no vectors of entities",
                found=type(graph).__name__,
                valid="a MemoryGraph",
            )
        names = tuple(document.id for document in batch.documents)
        if names:
            keep(names, batch.vectors, [document.text for document in batch.documents])
        return names

    def _given(self) -> Sequence[KnowledgeGraph]:
        graphs = self._graphs
        return tuple(graphs.values()) if isinstance(graphs, Mapping) else (graphs,)

    def _graph(self, request: EngineRequest) -> KnowledgeGraph:
        if not isinstance(self._graphs, Mapping):
            return self._graphs
        graph = self._graphs.get(request.namespace)
        if graph is None:
            raise EngineError(
                "this tenant has no knowledge graph",
                where=f"namespace {request.namespace!r}",
                valid="a namespace that the engine was given a graph for",
            )
        return graph

    def _fail(self, request: EngineRequest, error: BaseException) -> None:
        self._outputs.append(EngineOutput(request.id, "error", error=error))
