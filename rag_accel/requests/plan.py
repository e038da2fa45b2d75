"""A graph compiled once for the engines that run it: checked, grown and lowered.

A request grows where its conditions decide, and equal decisions grow the same. So what is grown
and lowered is kept with the graph, as a tree of regions by the decisions that led to them: the
second request that comes the same way compiles nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rag_accel.engine_api.kinds import PrimitiveKind
from rag_accel.graph.framework_calls import is_framework_call
from rag_accel.graph.frozen import FrozenRAGraph
from rag_accel.graph.growth import StageInstance, choose, grow, is_past_limit, stage_of
from rag_accel.graph.nodes import END, START, StageName
from rag_accel.graph.option_inputs import bound, holds_inputs, named_inputs
from rag_accel.graph.primitives import Primitive, PrimitiveGraph, PrimitiveName
from rag_accel.graph.spec import verify
from rag_accel.graph.stages import Branch, Retrieval, Retry
from rag_accel.passes.changes import Change
from rag_accel.passes.context import PassContext
from rag_accel.passes.decompose import decompose
from rag_accel.passes.early_prefill import early_prefills
from rag_accel.passes.manager import run_passes, static_passes
from rag_accel.passes.ordering import restore_waits
from rag_accel.passes.speculate import speculative_edges
from rag_accel.profile.recording import Recording
from rag_accel.profile.replay import PassSaving, saved_ms
from rag_accel.requests.engines import Engines
from rag_accel.requests.graph_checks import (
    check_engines,
    check_fields,
    filters,
    refuse_fallbacks,
    with_asked_kinds,
)
from rag_accel.requests.read_ahead import hinted_values
from rag_accel.requests.recovery import with_recovery
from rag_accel.requests.speculation_record import SpeculationRecord
from rag_accel.requests.speculations import SpeculatedPair
from rag_accel.requests.streams import LIST_ITEMS
from rag_accel.scheduler.messages import EngineName, NodeSpec

#: The engine of user code and conditions; joins every driver, holds nothing back.
USER_CODE = EngineName("user code")

#: What ends the name of a node that runs reducers before the primitive of the same name.
FOLD = ".fold"

#: The most regions that are kept with a graph: a loop has one for each turn.
MAX_REGIONS = 256


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """The primitives that one decision of a request sets free.

    Args:
        primitives: what the last decision has set free.
        specs: the same as the scheduler takes it, with the nodes that run reducers.
        by_node: the primitive of each node.
        instances: all that has been grown so far, by name.
        freed: what passes let primitives go without, for later regions that wait for these.
        before_end: the stages that led to END.
        asking: the nodes whose options each request sets.
        is_cut_off: whether it ends a loop that turned as often as it may.
        retries: the attempts of nodes whose stages have any.
        early: beginnings of prompts to prefill early, each with where.
        speculated: searches whose generations may begin before they end.
        then: the regions kept of what is decided next, by branch and answer.
    """

    primitives: Sequence[Primitive] = ()
    specs: tuple[NodeSpec, ...] = ()
    by_node: Mapping[str, Primitive] = field(default_factory=dict[str, Primitive])
    instances: Mapping[str, StageInstance] = field(default_factory=dict[str, StageInstance])
    freed: Mapping[PrimitiveName, tuple[PrimitiveName, ...]] = field(
        default_factory=dict[PrimitiveName, tuple[PrimitiveName, ...]]
    )
    before_end: frozenset[StageName] = frozenset()
    asking: tuple[str, ...] = ()
    is_cut_off: bool = False
    retries: Mapping[str, Retry] = field(default_factory=dict[str, Retry])
    early: tuple[tuple[Primitive, EngineName], ...] = ()
    speculated: tuple[SpeculatedPair, ...] = ()
    then: dict[tuple[str, tuple[StageName, ...], bool], Region] = field(
        default_factory=dict[tuple[str, tuple[StageName, ...], bool], "Region"]
    )


class GraphPlan:
    """A graph compiled for engines, as far as its requests have come.

    Args:
        graph: what is compiled.
        engines: those it may name; constant. A callable without a kind does what its stages need.
        max_loops: how often a stage may run in one request.
        passes: the static passes that rewrite what is grown; by default all there are.
        estimated: further passes that do so where they are expected to save time.
        records: what searches and generations have shown, by name; for all plans of the graph.
    """

    def __init__(
        self,
        graph: FrozenRAGraph,
        engines: Engines,
        max_loops: int,
        passes: frozenset[str] | None = None,
        estimated: frozenset[str] = frozenset(),
        records: dict[tuple[str, str], SpeculationRecord] | None = None,
    ) -> None:
        self.graph = graph
        self.records = {} if records is None else records
        self.given = engines
        self.engines = engines = with_asked_kinds(graph, engines)
        profiles = {name: named.profile for name, named in engines.items()}
        reduced = frozenset(output for output, _ in graph.reducers)
        self._context = PassContext(profiles, reduced, passes, estimated)
        self._max_loops = max_loops
        self._start: Region | None = None
        self._num_regions = 0
        self._filters = filters(graph, engines)
        calls = (getattr(stage, "fn", None) for stage in graph.stages)
        #: the name of the program that the graph is made of
        self.program = next((fn.program for fn in calls if is_framework_call(fn)), None)
        #: stages whose options each request sets
        self._asking = tuple(stage for stage in graph.stages if any(named_inputs(stage)))
        #: values whose documents are hinted at as soon as they are there, and to which engines
        self.hinted = hinted_values(graph, engines)

    def check(self) -> None:
        """Verify the graph against the engines.

        Raises:
            GraphError: if it breaks a rule, or one of these engines would run it wrongly.
        """
        verify(self.graph, "ragraph", self._context.engines)
        check_engines(self.graph, self.engines)
        refuse_fallbacks(self.graph, self.engines)

    def check_fields(self) -> None:
        """Raise GraphError if a filter is on a field that, by now, no document of an index has."""
        if self._filters:
            check_fields(self._filters, self.engines)

    def check_options(self, inputs: Mapping[str, Any]) -> None:
        """Raise GraphError if an option that a request sets cannot have its value."""
        if not self._asking:
            return
        filtered = {stage.name for stage in self._filters}
        stages = [bound(stage, inputs) for stage in self._asking]
        check_fields(
            (stage for stage in stages if isinstance(stage, Retrieval) and stage.name in filtered),
            self.engines,
        )

    def start(self) -> Region:
        """Return START's region.

        Raises:
            GraphError: if stages cannot be lowered to the engines.
        """
        if self._start is None:
            self._start = self._grow(Region(), [START])
        return self._start

    def decide(self, region: Region, branch: Primitive, answer: Any) -> Region:
        """Return what a condition's answer sets free, ``primitives`` being new then.

        Raises:
            GraphError: if the answer names no stage the branch may choose, or a loop turned too
                often.
        """
        instance = region.instances[branch.instance]
        assert isinstance(instance.stage, Branch), "only branches are conditions"
        chosen = choose(self.graph, instance.stage, answer)
        ends = not chosen or (isinstance(answer, list | tuple) and END in answer)
        key = (branch.instance, chosen, ends)
        known = region.then.get(key)
        if known is not None:
            return known
        after = {stage_of(name) for name in instance.after} if ends else set[StageName]()
        if self.graph.on_loop_limit == "end" and is_past_limit(
            self.graph, chosen, region.instances.values(), self._max_loops
        ):
            before = {stage_of(name) for name in instance.after}
            found = replace(self._grow(region, (), region.before_end | before), is_cut_off=True)
        else:
            found = self._grow(region, chosen, region.before_end | after)
        if self._num_regions < MAX_REGIONS:
            self._num_regions += 1
            region.then[key] = found
        return found

    def savings(self, recording: Recording) -> tuple[PassSaving, ...]:
        """Return what each pass that changes what START sets free saves a request, by replay.

        Raises:
            ConfigError: if no request of this graph is recorded.
        """
        primitives = self.start().primitives
        found: list[PassSaving] = []
        for name in self._changing():
            others = GraphPlan(self.graph, self.engines, self._max_loops, self._passes_but(name))
            before = {
                str(primitive.name): primitive.after for primitive in others.start().primitives
            }
            after = {str(primitive.name): primitive.after for primitive in primitives}
            is_known = before.keys() == after.keys()
            found.append(PassSaving(name, saved_ms(recording, before, after) if is_known else None))
        return tuple(found)

    def _changing(self) -> list[str]:
        """Return the passes that change START's region."""
        grown = grow(self.graph, [START], (), self._max_loops)
        plan = run_passes(decompose(grown, self._context.engines), self._context)
        return [change.by for change in plan.journal if change != Change(change.by)]

    def _passes_but(self, name: str) -> frozenset[str]:
        enabled = self._context.enabled
        known = {pass_.name for pass_ in static_passes()} if enabled is None else enabled
        return frozenset(known) - {name}

    def _grow(
        self,
        so_far: Region,
        entries: Sequence[str],
        before_end: frozenset[StageName] = frozenset(),
    ) -> Region:
        if not entries:
            return Region((), (), {}, so_far.instances, so_far.freed, before_end)
        grown = grow(self.graph, entries, so_far.instances.values(), self._max_loops)
        ending = (
            instance.stage.name
            for instance in grown
            if END in self.graph.successors[instance.stage.name]
        )
        lowered = decompose(grown, self._context.engines)
        plan = run_passes(restore_waits(lowered, so_far.freed), self._context)
        specs, by_node = self._specs(plan.graph.primitives)
        speculated = tuple(self._speculated(plan.graph))
        told = {pair.search for pair in speculated}
        specs = tuple(replace(spec, provisional=spec.name in told) for spec in specs)
        specs, added, retries = with_recovery(
            grown, plan.graph.primitives, specs, self._context.engines, self._specs
        )
        by_node = {**by_node, **added}
        return Region(
            plan.graph.primitives,
            specs,
            by_node,
            {**so_far.instances, **{instance.name: instance for instance in grown}},
            {**so_far.freed, **plan.freed},
            before_end.union(ending),
            tuple(name for name, made in by_node.items() if holds_inputs(made.attributes)),
            retries=retries,
            early=self._early(plan.graph),
            speculated=speculated,
        )

    def _early(self, graph: PrimitiveGraph) -> tuple[tuple[Primitive, EngineName], ...]:
        """Return the beginnings of prompts that are worth prefilling early, each with where."""
        found = early_prefills(graph, self._context)
        return tuple((primitive, self.engine_of(primitive)) for primitive in found)

    def _speculated(self, graph: PrimitiveGraph) -> Iterator[SpeculatedPair]:
        """Yield the searches whose generations may begin with what they have found so far."""
        for search, generation in speculative_edges(graph, self._context):
            names = search.name, generation.name
            record = self.records.setdefault(names, SpeculationRecord())
            yield SpeculatedPair(*names, self.engine_of(generation), record)

    def _specs(
        self, primitives: Sequence[Primitive]
    ) -> tuple[tuple[NodeSpec, ...], dict[str, Primitive]]:
        specs: list[NodeSpec] = []
        by_node: dict[str, Primitive] = {}
        for primitive in primitives:
            after = tuple(str(name) for name in primitive.after)
            by_node[primitive.name] = primitive
            if self._is_owned(primitive) and not self._context.reduced.isdisjoint(primitive.inputs):
                # Reducers are the user's code: they run on no engine's thread.
                fold = primitive.name + FOLD
                by_node[fold] = primitive
                kind = PrimitiveKind.AGGREGATE
                specs.append(NodeSpec(fold, USER_CODE, kind, after, primitive.depth + 1))
                after = (fold,)
            engine = self.engine_of(primitive)
            specs.append(
                NodeSpec(
                    primitive.name, engine, primitive.kind, after, primitive.depth, primitive.size
                )
            )
        return tuple(specs), by_node

    def _is_owned(self, primitive: Primitive) -> bool:
        return primitive.engine is not None and self.engines[primitive.engine].call is None

    def engine_of(self, primitive: Primitive) -> EngineName:
        """Return the scheduler's name of what executes a primitive."""
        if primitive.kind is PrimitiveKind.PARTIAL_DECODING:
            return LIST_ITEMS
        if primitive.engine is None:
            return USER_CODE
        return self.engines[primitive.engine].engine


class Progress:
    """The progress of one request. Not thread-safe."""

    def __init__(self, plan: GraphPlan) -> None:
        self._plan = plan
        self._region = Region()

    def start(self) -> Region:
        self._region = self._plan.start()
        return self._region

    def decide(self, branch: Primitive, answer: Any) -> Region:
        """Return the region of a condition's answer. Raises as ``GraphPlan.decide``."""
        self._region = self._plan.decide(self._region, branch, answer)
        return self._region

    def results(self) -> list[str]:
        """Return the outputs of the stages that led to END, in the order of the stages."""
        before_end = self._region.before_end
        stages = (stage for name, stage in self._plan.graph.by_name.items() if name in before_end)
        return list(dict.fromkeys(str(stage.output) for stage in stages if stage.output))

    def is_sure_to_be_last(self, primitive: Primitive) -> bool:
        """Tell whether a generation's text is the result, whatever conditions still decide."""
        return (
            primitive.kind is PrimitiveKind.DECODING
            and self._region.before_end == {primitive.stage}
            and self._plan.graph.successors[primitive.stage] == (END,)
        )
