"""The skeleton of a compiled LangGraph: how far each of its nodes is from the end.

LangGraph stays the executor and its nodes stay opaque. What a skeleton gives is the order in which
their intercepted leaves should start (Teola Algorithm 2): of one request, those with the longest
remaining path first. It is a plan, not the run: a condition without declared targets may lead
anywhere, loops count once, and how wide ``Send`` fans out is unknown.

LangGraph waits for all tasks of a superstep, so order among plain nodes of one superstep gains
nothing; it gains where a subgraph runs beside them and has steps of its own to go.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.embeddings import Embeddings
from langchain_core.runnables.config import var_child_runnable_config

from rag_accel.graph.order import depths, forward
from rag_accel_adapters.langchain.langgraph_edges import END, START, declared
from rag_accel_adapters.langchain.langgraph_parts import is_graph
from rag_accel_adapters.langchain.walk import walk


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
