"""Check a graph against the named rules of its stage of lowering; report all offenders at once.

``ragraph`` is what a user writes, ``p-graph`` what ``decompose`` makes of it, ``e-graph`` what the
passes make of that. The rules themselves stand in ``ragraph_rules`` and ``primitive_rules``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from rag_accel.engine_api.kinds import HasKinds
from rag_accel.errors import GraphError
from rag_accel.graph.frozen import FrozenRAGraph
from rag_accel.graph.primitive_rules import E_GRAPH_RULES, P_GRAPH_RULES
from rag_accel.graph.primitives import PrimitiveGraph
from rag_accel.graph.ragraph import RAGraph
from rag_accel.graph.ragraph_rules import RAGRAPH_RULES

GraphStage: TypeAlias = Literal["ragraph", "p-graph", "e-graph"]
AnyGraph: TypeAlias = RAGraph | FrozenRAGraph | PrimitiveGraph


def verify(
    graph: AnyGraph, stage: GraphStage, engines: Mapping[str, HasKinds] | None = None
) -> None:
    """Raise one GraphError that lists everything about ``graph`` that breaks a rule of ``stage``.

    Args:
        engines: those the graph may name; without them no rule about engines is checked.
    """
    found = offenders(graph, stage, engines)
    if found:
        many = "1 offender" if len(found) == 1 else f"{len(found)} offenders"
        raise GraphError(f"not a valid {stage}", found=many, offenders=found)


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
