"""Prompts as nodes that depend on each other: text, and trees of relation paths (section 5).

system -> context -> task           each node sees the one before it, and what that sees

system -> paths of Ada  -> task     two contexts that do not see each other:
       -> paths of Alan ->          depends_on=("system",) for each, both for the task
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

from rag_accel.engine_api import GraphPath
from rag_accel.errors import ConfigError
from rag_accel.graph.nodes import listed, suggestion
from rag_accel.kv.dependency.layouts import Layout, check_entities, check_layout
from rag_accel.kv.dependency.paths import Segments, check_text, checked_paths, path_segments

SYSTEM, CONTEXT, TASK = "system", "context", "task"


@dataclass(frozen=True, slots=True)
class LinearNode:
    """Text whose tokens each see all before them, and all of what the node depends on.

    Args:
        name: of the node, such as ``system`` or ``task``.
        text: not empty.
        depends_on: names of nodes; None for the node before it in the prompt.

    Raises:
        ConfigError: if the name or the text is empty or no text, or ``depends_on`` is not names.
    """

    name: str
    text: str
    depends_on: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_text(self.name, "name of a node")
        check_text(self.text, "text of a node", self.name)
        _settle_names(self)


@dataclass(frozen=True, slots=True)
class TreeNode:
    """Relation paths; each token sees its own path, and all of what the node depends on.

    Args:
        name: of the node, such as ``context``.
        paths: the segments of each, as they are written: ``("a", " -> r ->", " b")``.
        layout: of the paths in the prompt.
        depends_on: names of nodes; None for the node before it in the prompt.

    Raises:
        ConfigError: if there is no path, a path or a segment is empty, there is no such layout, or
            the layout needs paths that end with an entity.
    """

    name: str
    paths: tuple[Segments, ...]
    layout: Layout = "tree"
    depends_on: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_text(self.name, "name of a node")
        object.__setattr__(self, "paths", checked_paths(self.paths, self.name))
        check_layout(self.layout, self.name)
        check_entities(self.paths, self.layout, self.name)
        _settle_names(self)

    @classmethod
    def of_graph(
        cls,
        paths: Iterable[GraphPath],
        *,
        name: str = CONTEXT,
        layout: Layout = "tree",
        depends_on: tuple[str, ...] | None = None,
    ) -> TreeNode:
        """Return the node of paths that a graph retrieval found, best first.

        Raises:
            ConfigError: as the class does.
        """
        return cls(name, tuple(path_segments(path) for path in paths), layout, depends_on)


@dataclass(frozen=True, slots=True)
class DepPrompt:
    """A prompt of nodes. The last one is text, and sees all others.

    Args:
        nodes: in the order of the prompt; a node that depends on a later one moves behind it.

    Raises:
        ConfigError: if there is no node, names are not distinct, a name is unknown, nodes depend on
            each other in a cycle, several nodes are seen by no other, or that node is a tree.
    """

    nodes: tuple[LinearNode | TreeNode, ...]
    #: of each node, the names of all that it sees, in the order of ``nodes``
    visible: Mapping[str, tuple[str, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        given = tuple(self.nodes)
        depends = _dependencies(given)
        order = _sorted(depends)
        by_name = {node.name: node for node in given}
        object.__setattr__(self, "nodes", tuple(by_name[name] for name in order))
        visible: dict[str, tuple[str, ...]] = {}
        for name in order:
            seen = {above for other in depends[name] for above in (other, *visible[other])}
            visible[name] = tuple(other for other in order if other in seen)
        object.__setattr__(self, "visible", visible)
        _check_last(by_name, depends)

    @classmethod
    def chain(
        cls,
        system: str,
        context: Iterable[Iterable[str]],
        task: str,
        *,
        layout: Layout = "tree",
    ) -> DepPrompt:
        """Return the prompt ``system -> context -> task``, the paper's default.

        Args:
            system: the text before the paths.
            context: the segments of each path.
            task: the text behind them, the question among it.
            layout: of the paths.

        Raises:
            ConfigError: as the nodes do.
        """
        paths = checked_paths(context, CONTEXT)
        return cls(
            (LinearNode(SYSTEM, system), TreeNode(CONTEXT, paths, layout), LinearNode(TASK, task))
        )


def _settle_names(node: LinearNode | TreeNode) -> None:
    """Make ``depends_on`` a tuple; raise ConfigError unless it is names."""
    names = node.depends_on
    if names is None:
        return
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise ConfigError(
            "depends_on is a list of names", where=node.name, found=repr(names), valid="('system',)"
        )
    settled = tuple(names)
    for name in settled:
        check_text(name, "name in depends_on", node.name)
    object.__setattr__(node, "depends_on", tuple(dict.fromkeys(settled)))


def _dependencies(nodes: tuple[LinearNode | TreeNode, ...]) -> dict[str, tuple[str, ...]]:
    """Return the names that each node depends on, all of them known."""
    if not nodes:
        raise ConfigError("a prompt has no node", valid="at least the task")
    depends: dict[str, tuple[str, ...]] = {}
    before: tuple[str, ...] = ()
    for node in nodes:
        if not isinstance(node, LinearNode | TreeNode):
            raise ConfigError(
                "an item of a prompt is no node",
                found=type(node).__name__,
                valid="LinearNode, TreeNode",
            )
        if node.name in depends:
            raise ConfigError("two nodes of a prompt have one name", found=repr(node.name))
        depends[node.name] = before if node.depends_on is None else node.depends_on
        before = (node.name,)
    for name, others in depends.items():
        for other in others:
            if other not in depends:
                raise ConfigError(
                    "a node depends on one that is not in the prompt",
                    where=name,
                    found=repr(other),
                    valid=listed(depends),
                    hint=suggestion(other, depends),
                )
    return depends


def _sorted(depends: dict[str, tuple[str, ...]]) -> list[str]:
    """Return the names, each behind those it depends on, else in their order."""
    sorter = TopologicalSorter(depends)
    try:
        sorter.prepare()
    except CycleError as error:
        # The cycle is listed against the direction of dependence.
        cycle: list[str] = error.args[1]
        raise ConfigError(
            "nodes of a prompt depend on each other",
            found=" -> ".join(cycle),
            hint="name what a node depends on in depends_on; without, it is the node before it",
        ) from error
    places = {name: place for place, name in enumerate(depends)}
    names = list(depends)
    ready = [places[name] for name in sorter.get_ready()]
    heapq.heapify(ready)
    order: list[str] = []
    while ready:
        name = names[heapq.heappop(ready)]
        order.append(name)
        sorter.done(name)
        for freed in sorter.get_ready():
            heapq.heappush(ready, places[freed])
    return order


def _check_last(
    nodes: dict[str, LinearNode | TreeNode], depends: dict[str, tuple[str, ...]]
) -> None:
    """Raise ConfigError unless one node, a text, sees all others."""
    used = {other for others in depends.values() for other in others}
    last = [name for name in depends if name not in used]
    if len(last) > 1:
        raise ConfigError(
            "several nodes of a prompt are seen by no other",
            found=listed(last),
            valid="the task alone, which sees all others",
            hint=f"name them in depends_on of {last[-1]!r}",
        )
    if isinstance(nodes[last[0]], TreeNode):
        raise ConfigError(
            "a prompt ends with a tree", where=last[0], valid="text, which an answer continues"
        )
