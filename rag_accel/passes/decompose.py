"""The lowering of stages to primitives (Teola section 4.1, Algorithm 1 ``GraphTransform``).

    search: Retrieval@index(input) -> docs

becomes, on owned engines,

    search.embedding: EMBEDDING@embedder(input) -> search.vector
    search.searching: SEARCHING@index(search.vector) -> docs  after search.embedding

What a stage becomes depends on its engines: an engine that does the whole stage, and every
borrowed one, gets a single primitive. An index that ranks by words as well is handed the query's
text with its vector. Order is kept as the stages have it; removing what carries no data is
another pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from rag_accel.engine_api import KINDS, BorrowedEngine, EngineProfile
from rag_accel.engine_api.kinds import PrimitiveKind
from rag_accel.errors import GraphError
from rag_accel.graph.frozen import FrozenRAGraph
from rag_accel.graph.growth import InstanceName, StageInstance, stage_of
from rag_accel.graph.nodes import END, START, StageName, alternatives, listed
from rag_accel.graph.order import depths
from rag_accel.graph.primitives import Primitive, PrimitiveGraph, PrimitiveName
from rag_accel.graph.prompt import ValueName
from rag_accel.graph.ragraph import RAGraph
from rag_accel.graph.stages import Branch, Stage
from rag_accel.graph.stages.kind import Step, kind_of

Engines: TypeAlias = Mapping[str, EngineProfile | BorrowedEngine]


def decompose(
    source: RAGraph | FrozenRAGraph | Sequence[StageInstance], engines: Engines
) -> PrimitiveGraph:
    """Return the primitives of a whole graph, or of the region that ``grow`` returned.

    A region is what runs. The whole graph of a workflow with conditions is for reading: every
    stage appears once, also after the conditions that may choose it, and edges back into a loop
    are left out. Depths are the same in both, unless the edge left out of a loop is one that a
    region takes: in that region what waits for a primitive is still less deep than it.

    Raises:
        GraphError: listing every stage whose engine is missing or executes nothing it needs.
    """
    instances = _whole(source.freeze()) if isinstance(source, RAGraph | FrozenRAGraph) else source
    if not instances:
        return PrimitiveGraph()
    graph = instances[0].graph
    steps = _all_steps(graph, engines)
    weights = {START: 0, END: 0} | {name: len(several) for name, several in steps.items()}
    depth = depths(graph.forward, weights)
    primitives = [
        primitive
        for instance in instances
        for primitive in _lower(instance, steps, depth[instance.stage.name])
    ]
    made = {primitive.name for primitive in primitives}
    waited = (source for primitive in primitives for source in primitive.after)
    external = tuple(dict.fromkeys(name for name in waited if name not in made))
    return PrimitiveGraph(_with_falling_depth(primitives), external)


_Steps: TypeAlias = dict[StageName, tuple[Step, ...]]


def _whole(graph: FrozenRAGraph) -> list[StageInstance]:
    branches = [name for name, stage in graph.by_name.items() if isinstance(stage, Branch)]
    return [
        StageInstance(
            name=InstanceName(name),
            stage=graph.by_name[name],
            after=tuple(
                InstanceName(source)
                for source in (*graph.predecessors[name], *branches)
                if source in graph.by_name and name in graph.forward[source]
            ),
            depth=graph.depth[name],
            turn=1,
            graph=graph,
        )
        for name in graph.forward
        if name in graph.by_name
    ]


def _all_steps(graph: FrozenRAGraph, engines: Engines) -> _Steps:
    problems: list[str] = []
    sizes = document_counts(graph)
    steps = {name: _steps(stage, engines, sizes, problems) for name, stage in graph.by_name.items()}
    if problems:
        raise GraphError("stages cannot be lowered to these engines", offenders=tuple(problems))
    return steps


def _steps(
    stage: Stage, engines: Engines, sizes: Mapping[ValueName, int], problems: list[str]
) -> tuple[Step, ...]:
    """Return a stage's primitives in order; note in ``problems`` what is missing."""
    return tuple(
        _able(stage, step, engines, problems)
        for step in kind_of(stage).steps(stage, engines, sizes)
    )


def _able(stage: Stage, step: Step, engines: Engines, problems: list[str]) -> Step:
    """Return the step as its engine executes it; a callable does what it was added for."""
    if step.engine is None:
        return step
    name, kind = step.engine, step.kind
    engine = engines.get(name)
    if engine is None:
        known = alternatives(name, engines)
        problems.append(f"known-engines: stage {stage.name!r} names engine {name!r}; {known}")
    elif kind not in engine.kinds:
        if isinstance(engine, BorrowedEngine) and engine.kinds and not KINDS[kind].owned_only:
            return replace(step, kind=next(kind for kind in PrimitiveKind if kind in engine.kinds))
        able = listed(sorted(engine.kinds))
        problems.append(
            f"known-engines: stage {stage.name!r} needs {kind}, but engine {name!r} executes {able}"
        )
    return step


def _lower(instance: StageInstance, steps: _Steps, depth: int) -> Iterator[Primitive]:
    stage = instance.stage
    own = steps[stage.name]
    after = tuple(_tail(source, steps) for source in instance.after)
    before: tuple[ValueName, ...] = ()
    for place, step in enumerate(own):
        last = place == len(own) - 1
        name = _name(instance.name, step)
        output = stage.output if last else _handed(instance.name, step)
        yield Primitive(
            name=name,
            instance=instance.name,
            kind=step.kind,
            engine=step.engine,
            inputs=_inputs(instance, step, before),
            output=output,
            after=after,
            depth=depth - place,
            size=step.items,
            reads_all=stage.reads_all,
            attributes=(*_attributes(stage, first=place == 0, last=last), *step.attributes),
        )
        after = (name,)
        before = () if output is None else (output,)


def _with_falling_depth(primitives: Sequence[Primitive]) -> tuple[Primitive, ...]:
    """Raise depths until each exceeds those of its dependents; takes topological order."""
    least: dict[PrimitiveName, int] = {}
    raised: list[Primitive] = []
    for primitive in reversed(primitives):
        depth = max(primitive.depth, least.get(primitive.name, 0))
        for source in primitive.after:
            least[source] = max(depth + 1, least.get(source, 0))
        raised.append(primitive if depth == primitive.depth else replace(primitive, depth=depth))
    return tuple(reversed(raised))


def _name(instance: InstanceName, step: Step) -> PrimitiveName:
    label = f".{step.label}" if step.label else ""
    return PrimitiveName(f"{instance}.{step.kind.lower()}{label}")


def _handed(instance: InstanceName, step: Step) -> ValueName:
    return ValueName(f"{instance}.{step.writes or KINDS[step.kind].hands_on}")


def _inputs(
    instance: StageInstance, step: Step, before: tuple[ValueName, ...]
) -> tuple[ValueName, ...]:
    if step.reads or step.given:
        own = (ValueName(f"{instance.name}.{name}") for name in step.reads)
        return (*own, *step.given)
    return (*before, *instance.stage.inputs) if step.reads_stage or not before else before


def _tail(instance: InstanceName, steps: _Steps) -> PrimitiveName:
    return _name(instance, steps[stage_of(instance)][-1])


def _attributes(stage: Stage, first: bool, last: bool) -> tuple[tuple[str, Any], ...]:
    """Return what the stage fixes for its first primitive, for its last, or for its only one."""
    kind = kind_of(stage)
    names = (*(kind.of_first if first else ()), *(kind.of_last if last else ()))
    told = ((name, getattr(stage, name)) for name in names)
    return tuple((key, value) for key, value in told if value not in (None, ()))


def document_counts(graph: FrozenRAGraph) -> dict[ValueName, int]:
    """Return how many documents each value probably holds, if any: reduced writers add up."""
    reduced = {output for output, _ in graph.reducers}
    counts: dict[ValueName, int] = {}
    for name in graph.forward:
        stage = graph.by_name.get(name)
        if stage is None or stage.output is None:
            continue
        written = kind_of(stage).written(stage, counts)
        if written:
            known = counts.get(stage.output, 0) if stage.output in reduced else 0
            counts[stage.output] = known + written
    return counts
