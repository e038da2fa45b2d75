"""The nodes, edges and conditions that a compiled LangGraph declares, read once for all its uses.

LangGraph is looked into only where it is loaded; nothing here imports it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from langchain_core.embeddings import Embeddings
from langchain_core.runnables.config import var_child_runnable_config

from rag_accel.errors import TranslationError
from rag_accel.graph.order import depths, forward
from rag_accel_adapters.langchain.walk import is_graph, walk

START, END = "__start__", "__end__"
#: The most sets of nodes that may run in one superstep.
MAX_SUPERSTEPS = 64

#: nodes that run in one superstep, in order
Active = tuple[str, ...]
#: these, and by its place in a graph's joins, a join and a node that it need not wait for any more
Superstep = tuple[Active, frozenset[tuple[int, str]]]


class DeclaredGraph(NamedTuple):
    """The nodes that may follow each node of a compiled graph, the start among them.

    Args:
        targets: nodes that always do.
        conditions: by their names, what they may lead to; None where that is not declared.
        commanded: nodes that a node itself may name, with a ``Command``.
        joins: several nodes, and a node that runs once all of these have.
    """

    targets: Mapping[str, Active]
    conditions: Mapping[str, Mapping[str, Active | None]]
    commanded: Mapping[str, Active]
    joins: tuple[tuple[Active, str], ...]


def declared(graph: Any) -> DeclaredGraph:
    """Return what a compiled graph declares."""
    builder = getattr(graph, "builder", None)
    if builder is None:  # a function of the functional API
        names = tuple(graph.nodes)
        return DeclaredGraph({START: names, **dict.fromkeys(names, ())}, {}, {}, ())
    names = (START, *builder.nodes)
    # Edges are a set: their order would be another in each process.
    edges = sorted(builder.edges, key=lambda edge: (*names, END).index(edge[1]))
    conditions = {
        node: {
            name: branch.ends and tuple(dict.fromkeys(branch.ends.values()))
            for name, branch in branches.items()
        }
        for node, branches in builder.branches.items()
    }
    return DeclaredGraph(
        {name: tuple(end for start, end in edges if start == name) for name in names},
        conditions,
        {name: tuple(getattr(spec, "ends", None) or ()) for name, spec in builder.nodes.items()},
        tuple(sorted((tuple(sorted(starts)), end) for starts, end in builder.waiting_edges)),
    )


def supersteps(read: DeclaredGraph) -> dict[Superstep, tuple[Superstep, ...]]:
    """Return every superstep that can come about, the start first, and those that may follow it.

    Raises:
        TranslationError: if they are too many.
    """
    found: dict[Superstep, tuple[Superstep, ...]] = {}
    waiting: list[Superstep] = [((START,), frozenset())]
    for step in waiting:
        found[step] = tuple(dict.fromkeys(_after(read, *step))) if step[0] else ()
        waiting += [after for after in found[step] if after not in waiting]
        _check_number(waiting)
    return found


def _after(read: DeclaredGraph, nodes: Active, before: frozenset[Any]) -> Iterator[Superstep]:
    heard = set(before)
    always = {target for node in nodes for target in read.targets[node]}
    for place, (starts, end) in enumerate(read.joins):
        heard.update((place, node) for node in nodes if node in starts)
        if all((place, node) in heard for node in starts):
            always.add(end)
            heard.difference_update((place, node) for node in starts)
    chosen = {frozenset(always - {END}): None}  # a set in order
    for targets in (ends for node in nodes for ends in read.conditions.get(node, {}).values()):
        chosen = {one | ({end} - {END}): None for one in chosen for end in targets or ()}
        _check_number(chosen)
    for active in (tuple(sorted(one)) for one in chosen):
        # Where no node is next the run ends, whatever a join still waits for.
        yield active, frozenset(heard) if active else frozenset()


def _check_number(found: Any) -> None:
    if len(found) > MAX_SUPERSTEPS:
        more = f"more than {MAX_SUPERSTEPS} sets of nodes that may run together"
        raise refused("program", more, f"up to {MAX_SUPERSTEPS} of them")


def refused(
    where: str, found: str, valid: str = "nodes, edges and conditions with a path_map"
) -> TranslationError:
    """Return the error of a graph, or of what it does, that has no place in a plan."""
    return TranslationError(
        "a plan cannot do all that this LangGraph does",
        where=where,
        found=found,
        valid=valid,
        hint="call the program itself; accelerate(...) runs it",
    )


@dataclass(frozen=True, slots=True)
class Skeleton:
    """The longest remaining path of every node, in nodes; the last one's is 0.

    Args:
        depth: by position, which is the names of a node and of the subgraphs around it, outermost
            first, joined by colons.
    """

    depth: Mapping[str, int]

    def at(self, checkpoint_ns: str) -> int | None:
        """Return the depth of the node that a checkpoint namespace names; None if it is unknown.

        A namespace is ``node:task|inner node:task``; a part without a task numbers repeated runs
        of a subgraph. A node of a graph that no drawing shows, because a node's code calls it, is
        as deep as the node around it.
        """
        parts = (part.partition(":") for part in checkpoint_ns.split("|"))
        names = [name for name, colon, _ in parts if colon]
        for end in range(len(names), 0, -1):
            depth = self.depth.get(":".join(names[:end]))
            if depth is not None:
                return depth
        return None

    def here(self) -> int | None:
        """Return the depth of the node whose code runs in this context; None outside one."""
        config = var_child_runnable_config.get()
        if not config:
            return None
        return self.at(str(config.get("metadata", {}).get("langgraph_checkpoint_ns", "")))


def called_without_context(program: Any) -> frozenset[int]:
    """Return the ids of leaves that LangGraph calls in threads which carry no context.

    Those are the embeddings of the stores that its graphs were compiled with.
    """
    if "langgraph.store.base" not in sys.modules:
        return frozenset()
    graphs = (found.obj for found in walk(program) if is_graph(found.obj))
    stores = (graph.store for graph in graphs)
    found = (getattr(store, "embeddings", None) for store in stores if store is not None)
    return frozenset(id(one) for one in found if isinstance(one, Embeddings))


def skeleton(graph: Any) -> Skeleton | None:
    """Return the skeleton of a compiled graph, subgraphs included; None of anything else."""
    if not is_graph(graph):
        return None
    acyclic = forward(_successors(graph), [START])
    weights = {name: 0 for name in acyclic if name.rpartition(":")[2] in (START, END)}
    found = depths(acyclic, weights)
    return Skeleton({name: found[name] for name in acyclic if name not in weights})


def _successors(graph: Any, around: str = "") -> dict[str, list[str]]:
    """Return what may follow each node, by positions; a subgraph stands in its node's place."""
    read = declared(graph)
    subgraphs = {name: inner for name, inner in graph.get_subgraphs() if is_graph(inner)}
    anywhere = (*(name for name in read.targets if name != START), END)
    found: dict[str, list[str]] = {f"{around}{END}": []}
    for name, inner in subgraphs.items():
        found.update(_successors(inner, f"{around}{name}:"))
    for name, always in read.targets.items():
        targets = [*always, *read.commanded.get(name, ())]
        for ends in read.conditions.get(name, {}).values():
            targets += anywhere if ends is None else ends
        targets += [end for starts, end in read.joins if name in starts]
        found[f"{around}{name}:{END}" if name in subgraphs else f"{around}{name}"] = [
            f"{around}{target}:{START}" if target in subgraphs else f"{around}{target}"
            for target in dict.fromkeys(targets or [END])
        ]
    return found
