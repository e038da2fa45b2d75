"""Checks of a graph against the named rules of its stage of lowering, all offenders at once.

``ragraph`` is what a user writes, ``p-graph`` what ``decompose`` makes of it, ``e-graph`` what the
passes make of that. The rules of user graphs stand in ``ragraph_rules``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Literal, TypeAlias

from rag_accel.engine_api.kinds import KINDS, HasKinds
from rag_accel.errors import GraphError
from rag_accel.graph.frozen import FrozenRAGraph
from rag_accel.graph.nodes import alternatives, listed
from rag_accel.graph.order import reachable, topological
from rag_accel.graph.primitives import PrimitiveGraph
from rag_accel.graph.ragraph import RAGraph
from rag_accel.graph.ragraph_rules import RAGRAPH_RULES, Engines, Rule

GraphStage: TypeAlias = Literal["ragraph", "p-graph", "e-graph"]
AnyGraph: TypeAlias = RAGraph | FrozenRAGraph | PrimitiveGraph


def verify(
    graph: AnyGraph, stage: GraphStage, engines: Mapping[str, HasKinds] | None = None
) -> None:
    """Raise one GraphError that lists everything about ``graph`` that breaks a rule of ``stage``.

    Args:
        engines: those the graph may name; without them no rule about engines is checked.
    """
    refuse(f"not a valid {stage}", offenders(graph, stage, engines))


def refuse(what: str, found: tuple[str, ...]) -> None:
    """Raise one GraphError that lists all offenders, if there are any."""
    if found:
        many = "1 offender" if len(found) == 1 else f"{len(found)} offenders"
        raise GraphError(what, found=many, offenders=found)


def offenders(
    graph: AnyGraph, stage: GraphStage, engines: Mapping[str, HasKinds] | None = None
) -> tuple[str, ...]:
    """Return one line ``rule: what is wrong`` per offender; empty if the graph keeps the rules.

    Raises:
        GraphError: if the graph is of a kind that this stage does not have.
    """
    if isinstance(graph, PrimitiveGraph) and stage != "ragraph":
        rules = P_GRAPH_RULES if stage == "p-graph" else E_GRAPH_RULES
        return tuple(line for rule in rules for line in rule.offenders(graph, engines))
    if isinstance(graph, RAGraph | FrozenRAGraph) and stage == "ragraph":
        frozen = graph.freeze()
        return tuple(line for rule in RAGRAPH_RULES for line in rule.offenders(frozen, engines))
    raise GraphError(
        "this kind of graph has no such stage",
        found=f"a {type(graph).__name__} to verify as {stage!r}",
        valid="a RAGraph as 'ragraph', a PrimitiveGraph as 'p-graph' or 'e-graph'",
    )


def _unique_names(graph: PrimitiveGraph, engines: Engines) -> Iterator[str]:
    for name, count in Counter(primitive.name for primitive in graph.primitives).items():
        if count > 1:
            yield f"{count} primitives are named {name!r}"


def _known_primitives(graph: PrimitiveGraph, engines: Engines) -> Iterator[str]:
    valid = (*graph.by_name, *graph.external)
    for primitive in graph.primitives:
        for source in primitive.after:
            if source not in valid:
                yield (
                    f"{primitive.name!r} waits for {source!r}, which does not exist; "
                    + alternatives(source, valid)
                )


def _acyclic(graph: PrimitiveGraph, engines: Engines) -> Iterator[str]:
    try:
        topological(graph.successors)
    except GraphError as error:
        yield f"these wait for each other: {error.found}"


def _whole_kinds(graph: PrimitiveGraph, engines: Engines) -> Iterator[str]:
    for primitive in graph.primitives:
        if KINDS[primitive.kind].made_by_passes:
            yield f"{primitive.name!r} is {primitive.kind}, which only passes make"


def _known_engines(graph: PrimitiveGraph, engines: Engines) -> Iterator[str]:
    for primitive in graph.primitives:
        name, engine = primitive.name, primitive.engine
        if engine is None:
            if KINDS[primitive.kind].has_engine:
                yield f"{name!r} is {primitive.kind} and names no engine"
        elif engines is not None and engine not in engines:
            yield f"{name!r} names engine {engine!r}; {alternatives(engine, engines)}"
        elif engines is not None and primitive.kind not in engines[engine].kinds:
            able = listed(sorted(engines[engine].kinds))
            yield f"{name!r} is {primitive.kind}, but engine {engine!r} executes {able}"


def _falling_depth(graph: PrimitiveGraph, engines: Engines) -> Iterator[str]:
    for name, targets in graph.successors.items():
        for target in targets:
            depth, next_depth = graph.by_name[name].depth, graph.by_name[target].depth
            if depth <= next_depth:
                yield f"{name!r} has depth {depth}, {target!r} after it {next_depth}"


def _own_inputs(graph: PrimitiveGraph, engines: Engines) -> Iterator[str]:
    writers = {
        (primitive.instance, primitive.output): primitive.name
        for primitive in graph.primitives
        if primitive.output
    }
    for primitive in graph.primitives:
        for value in primitive.inputs:
            writer = writers.get((primitive.instance, value))
            if writer is None or writer == primitive.name:
                continue
            # A stage before the writer reads what an earlier stage wrote under the same name.
            read_before = writer in reachable(graph.successors, [primitive.name])
            if not read_before and primitive.name not in reachable(graph.successors, [writer]):
                yield f"{primitive.name!r} reads {value!r} without waiting for {writer!r}"


E_GRAPH_RULES: tuple[Rule[PrimitiveGraph], ...] = (
    Rule("unique-names", _unique_names),
    Rule("known-primitives", _known_primitives),
    Rule("acyclic", _acyclic),
    Rule("known-engines", _known_engines),
    Rule("falling-depth", _falling_depth),
    Rule("own-inputs", _own_inputs),
)
P_GRAPH_RULES: tuple[Rule[PrimitiveGraph], ...] = (
    *E_GRAPH_RULES,
    Rule("whole-kinds", _whole_kinds),
)
