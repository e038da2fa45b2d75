"""Lower stages to primitives (Teola section 4.1, Algorithm 1 ``GraphTransform``).

    search: Retrieval@index(input) -> docs

becomes, on engines of ours,

    search.embedding: EMBEDDING@embedder(input) -> search.vector
    search.searching: SEARCHING@index(search.vector) -> docs  after search.embedding

What a stage becomes depends on its engines: an engine that does the whole stage, and every
borrowed one, gets a single primitive. An index that ranks by words as well is handed the query's
text beside its vector. Order is kept as the stages have it; removing what carries no data is
another pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, assert_never

from rag_accel.engine_api import KINDS, BorrowedEngine, Capability, EngineProfile
from rag_accel.engine_api.kinds import PrimitiveKind
from rag_accel.errors import GraphError
from rag_accel.graph.frozen import FrozenRAGraph
from rag_accel.graph.growth import InstanceName, StageInstance, stage_of
from rag_accel.graph.item_lists import ItemFunction, ListFunction, UnionFunction
from rag_accel.graph.names import alternatives, listed
from rag_accel.graph.nodes import (
    END,
    START,
    Branch,
    EngineName,
    Function,
    Generation,
    Ingestion,
    Rerank,
    Retrieval,
    Stage,
    StageName,
)
from rag_accel.graph.order import depths
from rag_accel.graph.primitives import Primitive, PrimitiveGraph, PrimitiveName
from rag_accel.graph.prompt import ValueName
from rag_accel.graph.ragraph import RAGraph
from rag_accel.passes.item_counts import document_counts, item_count

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
    sizes = document_counts(graph)
    primitives = [
        primitive
        for instance in instances
        for primitive in _lower(instance, steps, depth[instance.stage.name], sizes)
    ]
    made = {primitive.name for primitive in primitives}
    waited = (source for primitive in primitives for source in primitive.after)
    external = tuple(dict.fromkeys(name for name in waited if name not in made))
    return PrimitiveGraph(_with_falling_depth(primitives), external)


def needs_embedder(index: EngineProfile | BorrowedEngine | None) -> bool:
    """Tell whether a retrieval on this index is handed a vector made by another engine."""
    return isinstance(index, EngineProfile) and Capability.EMBEDS not in index.capabilities


def _reads_text(index: EngineProfile | BorrowedEngine | None) -> bool:
    return isinstance(index, EngineProfile) and Capability.READS_TEXT in index.capabilities


@dataclass(frozen=True, slots=True)
class _KindStep:
    kind: PrimitiveKind
    engine: EngineName | None = None
    #: whether it reads the stage's own inputs too, after what the step before it wrote
    reads_stage: bool = False


_Steps: TypeAlias = dict[StageName, tuple[_KindStep, ...]]


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
    steps = {name: _steps(stage, engines, problems) for name, stage in graph.by_name.items()}
    if problems:
        raise GraphError("stages cannot be lowered to these engines", offenders=tuple(problems))
    return steps


def _steps(stage: Stage, engines: Engines, problems: list[str]) -> tuple[_KindStep, ...]:
    """Return the kinds a stage becomes, in order; note in ``problems`` what is missing."""
    match stage:
        case Generation():
            engine = engines.get(stage.engine)
            step = _step(stage, stage.engine, PrimitiveKind.DECODING, engines, problems)
            if isinstance(engine, EngineProfile) and PrimitiveKind.PREFILLING in engine.kinds:
                return (_KindStep(PrimitiveKind.PREFILLING, stage.engine), step)
            return (step,)
        case Retrieval():
            step = _step(stage, stage.engine, PrimitiveKind.SEARCHING, engines, problems)
            index = engines.get(stage.engine)
            if needs_embedder(index):
                step = replace(step, reads_stage=_reads_text(index))
                kind = PrimitiveKind.EMBEDDING
                return (_step(stage, stage.embedder, kind, engines, problems), step)
            return (step,)
        case Ingestion():
            kind = PrimitiveKind.EMBEDDING
            embedding = _step(stage, stage.embedder, kind, engines, problems)
            kind = PrimitiveKind.INGESTION
            taking = _step(stage, stage.engine, kind, engines, problems)
            return (embedding, replace(taking, reads_stage=True))
        case Rerank():
            kind = PrimitiveKind.RERANKING
            return (_step(stage, stage.engine, kind, engines, problems),)
        case Function():
            return (_KindStep(PrimitiveKind.FUNCTION),)
        case Branch():
            return (_KindStep(PrimitiveKind.CONDITION),)
        case _:
            assert_never(stage)


def _step(
    stage: Stage, name: EngineName, kind: PrimitiveKind, engines: Engines, problems: list[str]
) -> _KindStep:
    engine = engines.get(name)
    if engine is None:
        known = alternatives(name, engines)
        problems.append(f"known-engines: stage {stage.name!r} names engine {name!r}; {known}")
    elif kind not in engine.kinds:
        if isinstance(engine, BorrowedEngine) and engine.kinds and not KINDS[kind].owned_only:
            kind = next(first for first in PrimitiveKind if first in engine.kinds)
        else:
            able = listed(sorted(engine.kinds))
            problems.append(
                f"known-engines: stage {stage.name!r} needs {kind}, "
                f"but engine {name!r} executes {able}"
            )
    return _KindStep(kind, name)


def _lower(
    instance: StageInstance, steps: _Steps, depth: int, sizes: Mapping[ValueName, int]
) -> Iterator[Primitive]:
    stage = instance.stage
    own = steps[stage.name]
    after = tuple(_tail(source, steps) for source in instance.after)
    before: tuple[ValueName, ...] = ()
    for place, step in enumerate(own):
        last = place == len(own) - 1
        name = _name(instance.name, step)
        output = stage.output if last else ValueName(f"{instance.name}.{KINDS[step.kind].hands_on}")
        yield Primitive(
            name=name,
            instance=instance.name,
            kind=step.kind,
            engine=step.engine,
            inputs=(*before, *stage.inputs) if step.reads_stage or not before else before,
            output=output,
            after=after,
            depth=depth - place,
            size=item_count(stage, step.kind, sizes),
            reads_all=stage.reads_all,
            attributes=_attributes(stage, first=place == 0, last=last),
        )
        after = (name,)
        before = () if output is None else (output,)


def _with_falling_depth(primitives: Sequence[Primitive]) -> tuple[Primitive, ...]:
    """Raise the depth of what is not above all that waits for it; takes topological order."""
    least: dict[PrimitiveName, int] = {}
    raised: list[Primitive] = []
    for one in reversed(primitives):
        depth = max(one.depth, least.get(one.name, 0))
        for source in one.after:
            least[source] = max(depth + 1, least.get(source, 0))
        raised.append(one if depth == one.depth else replace(one, depth=depth))
    return tuple(reversed(raised))


def _name(instance: InstanceName, step: _KindStep) -> PrimitiveName:
    return PrimitiveName(f"{instance}.{step.kind.lower()}")


def _tail(instance: InstanceName, steps: _Steps) -> PrimitiveName:
    return _name(instance, steps[stage_of(instance)][-1])


def _attributes(stage: Stage, first: bool, last: bool) -> tuple[tuple[str, Any], ...]:
    """Return what the stage fixes: the prompt goes to its first primitive, the rest to its last."""
    told: list[tuple[str, Any]] = []
    match stage:
        case Generation():
            if first:
                told += [("prompt", stage.prompt), ("system", stage.system)]
            if last:
                told += [("stop", stage.stop), ("max_tokens", stage.max_tokens)]
        case Retrieval():
            if last:
                told += [("top_k", stage.top_k), ("where", stage.where)]
        case Ingestion():
            if first:
                told += [("role", "document")]
        case Rerank():
            told += [("top_n", stage.top_n)]
        case Function():
            told += [("fn", stage.fn), *_list_attributes(stage)]
        case Branch():
            told += [("condition", stage.condition), ("targets", stage.targets)]
        case _:
            assert_never(stage)
    return tuple((key, value) for key, value in told if value not in (None, ()))


def _list_attributes(stage: Function) -> Iterator[tuple[str, int | str]]:
    """Say how many items a function reads off a completion, which it takes, or that it joins."""
    if isinstance(stage.fn, ListFunction):
        yield ("items", stage.fn.item_count)
    if isinstance(stage.fn, ItemFunction):
        yield ("item", stage.fn.item_place)
    if isinstance(stage.fn, UnionFunction):
        yield ("union", "prefix")
