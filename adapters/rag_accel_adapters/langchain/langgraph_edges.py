"""The nodes, edges and conditions that a compiled LangGraph declares, read once for all its uses.

LangGraph is looked into only where it is loaded; nothing here imports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rag_accel_adapters.langchain.langgraph_parts import is_graph

START, END = "__start__", "__end__"


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition after a node.

    Args:
        name: its name in the graph.
        targets: what it may lead to; None if that is not declared.
    """

    name: str
    targets: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class NodeEdges:
    """The edges that leave a node.

    Args:
        targets: nodes that always do.
        conditions: each names others when it is asked.
        commanded: nodes that the node itself may name, with a ``Command``.
    """

    targets: tuple[str, ...]
    conditions: tuple[Condition, ...] = ()
    commanded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeclaredGraph:
    """The nodes of a compiled graph and what follows each.

    Args:
        edges: by node, the start among them.
        joins: several nodes, and a node that runs once all of these have.
        subgraphs: compiled graphs that are nodes, or inside one, by the node.
    """

    edges: Mapping[str, NodeEdges]
    joins: tuple[tuple[tuple[str, ...], str], ...]
    subgraphs: Mapping[str, Any]

    def successors(self) -> dict[str, tuple[str, ...]]:
        """Return all that may follow each node; a condition without targets may lead anywhere."""
        anywhere = (*(name for name in self.edges if name != START), END)
        found: dict[str, tuple[str, ...]] = {}
        for name, edges in self.edges.items():
            targets = [*edges.targets, *edges.commanded]
            for condition in edges.conditions:
                targets += anywhere if condition.targets is None else condition.targets
            targets += [end for starts, end in self.joins if name in starts]
            found[name] = tuple(dict.fromkeys(targets)) or (END,)
        return found


def declared(graph: Any) -> DeclaredGraph:
    """Return what a compiled graph declares."""
    subgraphs = {name: inner for name, inner in graph.get_subgraphs() if is_graph(inner)}
    builder = getattr(graph, "builder", None)
    if builder is None:  # a function of the functional API
        names = tuple(graph.nodes)
        return DeclaredGraph(
            {START: NodeEdges(names), **{name: NodeEdges(()) for name in names}}, (), {}
        )
    place = {name: at for at, name in enumerate((START, *builder.nodes, END))}
    edges: dict[str, NodeEdges] = {}
    for name in (START, *builder.nodes):
        targets = (target for source, target in builder.edges if source == name)
        spec = builder.nodes.get(name)
        edges[name] = NodeEdges(
            # NodeEdges are a set: their order would be another in each process.
            tuple(sorted(targets, key=lambda target: place[target])),
            tuple(
                Condition(key, branch.ends and tuple(dict.fromkeys(branch.ends.values())))
                for key, branch in builder.branches.get(name, {}).items()
            ),
            tuple(getattr(spec, "ends", None) or ()),
        )
    joins = sorted((tuple(sorted(starts)), end) for starts, end in builder.waiting_edges)
    return DeclaredGraph(edges, tuple(joins), subgraphs)
