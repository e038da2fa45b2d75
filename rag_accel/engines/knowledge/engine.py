"""The engine of a knowledge graph: what all requests ask of it, in one call a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rag_accel.clock import Clock, MonotonicClock
from rag_accel.engine_api import (
    EngineBase,
    EngineOutput,
    EngineProfile,
    EngineRequest,
    ExpandBatch,
    IngestBatch,
    LatencyModel,
    LinkQuery,
    PrimitiveKind,
    StepBudget,
    WorkId,
)
from rag_accel.engines.batching import StepDeadline
from rag_accel.engines.knowledge.checks import fault
from rag_accel.engines.knowledge.paths import Paths, extend, start
from rag_accel.engines.knowledge.protocol import Expansion, GraphView, KnowledgeGraph
from rag_accel.engines.knowledge.pruning import prune
from rag_accel.errors import EngineError

_Call = Callable[[GraphView, Sequence[EngineRequest]], Sequence[Any]]
_Groups = Sequence[tuple[GraphView, list[EngineRequest]]]

#: What is nearest to a result goes first.
_ORDER = (
    PrimitiveKind.INGESTION,
    PrimitiveKind.PRUNING,
    PrimitiveKind.EXPANDING,
    PrimitiveKind.SEARCHING,
)
_COUNTED = ("link_calls", "link_requests", "hop_calls", "hop_requests")


class KnowledgeEngine(EngineBase):
    """An engine for the work of ``GraphRetrieval`` stages over one graph, or one for each tenant.

    SEARCHING (``LinkQuery``) finds the entities that are meant, EXPANDING (``ExpandBatch``) makes
    one hop, PRUNING (``PruneBatch``) chooses paths. In a step the hops of all waiting requests are
    one call of the graph, and so are their searches. All hops of a request see the version that
    its search saw. INGESTION (``IngestBatch``) gives entities, by the ids of documents, their
    vectors, where the graph keeps some.

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
        self._profile = EngineProfile(
            kinds=frozenset(_ORDER),
            max_batch=max_batch,
            latency=latency or LatencyModel(base_s=0.0005, per_item_s=0.00005),
            max_threads=max_threads,
            stepped=True,
        )

    @property
    def profile(self) -> EngineProfile:
        """Return what this engine does."""
        return self._profile

    @property
    def counts(self) -> Mapping[str, int]:
        """Return how many calls of the graph were made, and for how many requests."""
        return self._counts

    def submit(self, work: Sequence[EngineRequest]) -> None:
        """Take work; what is malformed is reported by the next step."""
        for request in work:
            error = fault(request)
            if error is None:
                self._waiting[request.id] = request
            else:
                self._fail(request, error)

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        """Answer what waits, kind by kind; what the time is too short for stays."""
        deadline = StepDeadline(self._clock, budget.time_s)
        for kind in _ORDER:
            work = [one for one in self._waiting.values() if one.kind is kind]
            if work and deadline.may_start():
                self._answer(kind, work)
                for one in work:
                    self._waiting.pop(one.id, None)
        outputs, self._outputs = self._outputs, []
        return outputs

    def cancel(self, ids: Sequence[WorkId]) -> None:
        """Forget work; unknown ids are ignored."""
        gone = set(ids)
        for work in gone:
            self._waiting.pop(work, None)
        self._outputs = [output for output in self._outputs if output.id not in gone]

    def close(self) -> None:
        """Forget all work; the graphs stay the caller's."""
        self._waiting.clear()
        self._outputs.clear()

    def _answer(self, kind: PrimitiveKind, work: Sequence[EngineRequest]) -> None:
        if kind is PrimitiveKind.SEARCHING:
            self._call("link", self._by_view(work, self._present), _link)
        elif kind is PrimitiveKind.EXPANDING:
            self._call("hop", self._by_view(work, _own_view), _hop)
        else:
            for one in work:
                self._alone(one, _prune if kind is PrimitiveKind.PRUNING else self._ingest)

    def _by_view(
        self, work: Sequence[EngineRequest], view_of: Callable[[EngineRequest], GraphView]
    ) -> _Groups:
        """Return the work of each view; what has none fails."""
        groups: dict[int, tuple[GraphView, list[EngineRequest]]] = {}
        for one in work:
            try:
                view = view_of(one)
            except Exception as error:
                self._fail(one, error)
            else:
                groups.setdefault(id(view), (view, []))[1].append(one)
        return list(groups.values())

    def _call(self, name: str, groups: _Groups, call: _Call) -> None:
        """Make one call for each view; where it raises, one for each request."""
        for view, work in groups:
            self._counts[f"{name}_calls"] += 1
            self._counts[f"{name}_requests"] += len(work)
            try:
                values = call(view, work)
            except Exception as error:
                if len(work) == 1:
                    self._fail(work[0], error)
                else:
                    self._call(name, [(view, [one]) for one in work], call)
            else:
                for one, value in zip(work, values, strict=True):
                    self._outputs.append(EngineOutput(one.id, "final", value=value))

    def _alone(self, request: EngineRequest, run: Callable[[EngineRequest], object]) -> None:
        try:
            value = run(request)
        except Exception as error:
            self._fail(request, error)
        else:
            self._outputs.append(EngineOutput(request.id, "final", value=value))

    def _present(self, request: EngineRequest) -> GraphView:
        return self._graph(request).view()

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
            keep(names, batch.vectors)
        return names

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


def _own_view(request: EngineRequest) -> GraphView:
    return request.payload.paths.view


def _prune(request: EngineRequest) -> object:
    return prune(request.payload)


def _link(view: GraphView, work: Sequence[EngineRequest]) -> Sequence[Paths]:
    asked: list[LinkQuery] = [one.payload for one in work]
    return [
        start(view, ids[: query.k], one.namespace)
        for one, query, ids in zip(work, asked, view.find(asked), strict=True)
    ]


def _hop(view: GraphView, work: Sequence[EngineRequest]) -> Sequence[Paths]:
    batches: list[ExpandBatch] = [one.payload for one in work]
    asked = [
        Expansion(one.paths.frontier, one.relations, one.direction, one.fan_out) for one in batches
    ]
    edges = view.expand(asked)
    return [extend(one.paths, own, one.limit) for one, own in zip(batches, edges, strict=True)]
