"""The order of a directed graph's nodes: reachability, topological order, remaining depth.

Works on plain adjacency (node -> successors, in a fixed order) and always answers in an order
that depends on nothing but that, so results are equal in every process. Nothing recurses.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from rag_accel.errors import GraphError

Node = TypeVar("Node", bound=Hashable)


def reachable(successors: Mapping[Node, Sequence[Node]], roots: Iterable[Node]) -> list[Node]:
    """Return the roots and everything they lead to, nearest first."""
    found = dict.fromkeys(roots)
    queue = list(found)
    for node in queue:
        for target in successors.get(node, ()):
            if target not in found:
                found[target] = None
                queue.append(target)
    return queue


def forward(
    successors: Mapping[Node, Sequence[Node]], roots: Iterable[Node] = ()
) -> dict[Node, tuple[Node, ...]]:
    """Drop every edge that closes a cycle; what is left is acyclic and in topological order.

    A depth-first walk starts at ``roots``, then at every node not reached from them; an edge back
    to a node that is being walked closes a cycle. So a loop's body counts once.
    """
    kept: dict[Node, list[Node]] = {}
    for root in (*roots, *successors):
        if root not in kept:
            _walk(successors, root, kept)
    given = dict.fromkeys((*successors, *kept))
    return {node: tuple(kept[node]) for node in topological({node: kept[node] for node in given})}


def topological(successors: Mapping[Node, Sequence[Node]]) -> list[Node]:
    """Return all nodes, each before its successors; otherwise unrelated ones keep their order.

    Raises:
        GraphError: naming the nodes on or behind a cycle.
    """
    missing = dict.fromkeys(successors, 0)
    for targets in successors.values():
        for target in targets:
            missing[target] = missing.get(target, 0) + 1
    ready = [node for node, count in missing.items() if count == 0]
    for node in ready:
        for target in successors.get(node, ()):
            missing[target] -= 1
            if missing[target] == 0:
                ready.append(target)
    if len(ready) < len(missing):
        stuck = [node for node, count in missing.items() if count]
        raise GraphError("the graph has a cycle", found=", ".join(map(str, stuck)))
    return ready


def depths(
    acyclic: Mapping[Node, Sequence[Node]], weights: Mapping[Node, int] | None = None
) -> dict[Node, int]:
    """Return each node's longest remaining path to a sink (Teola Alg. 2, Event 1).

    A node counts ``weights[node]`` steps, by default one, and is measured at its first; so the
    last single-step node has depth 0. ``acyclic`` must be in topological order, as ``forward``
    returns it.
    """
    weight = weights or {}
    depth: dict[Node, int] = {}
    for node in reversed(tuple(acyclic)):
        rest = max((depth[target] + 1 for target in acyclic[node]), default=0)
        depth[node] = weight.get(node, 1) - 1 + rest
    return depth


def _walk(
    successors: Mapping[Node, Sequence[Node]],
    root: Node,
    kept: dict[Node, list[Node]],
) -> None:
    kept[root] = []
    active = {root}
    path: list[tuple[Node, Iterator[Node]]] = [(root, iter(successors.get(root, ())))]
    while path:
        node, rest = path[-1]
        for target in rest:
            if target in active:
                continue
            kept[node].append(target)
            if target not in kept:
                kept[target] = []
                active.add(target)
                path.append((target, iter(successors.get(target, ()))))
                break
        else:
            path.pop()
            active.discard(node)
