"""A workflow as an immutable value, as passes, growth and the scheduler see it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self, TypeAlias
from weakref import WeakKeyDictionary

from rag_accel.graph.nodes import END, START, Edge, EdgeKind, OnLoopLimit, Reducer, StageName
from rag_accel.graph.order import depths, forward
from rag_accel.graph.prompt import ValueName
from rag_accel.graph.stages import Branch, Stage

Link: TypeAlias = tuple[StageName, StageName]
Adjacency: TypeAlias = Mapping[StageName, tuple[StageName, ...]]

_UNCOUNTED = {START: 0, END: 0}


@dataclass(frozen=True, slots=True)
class FrozenRAGraph:
    """One version of a RAGraph. Nothing is checked here: ``spec.verify`` lists what is wrong.

    Args:
        stages: in the order they were added; two may bear one name until verified.
        links: unconditional edges as (source, target); kept grouped by target.
        inputs: values a request brings along.
        reducers: how values that unordered stages write to one output are combined, by output.
        on_loop_limit: whether a loop that turns too often is an error or ends there.
        optional: the inputs that are None where a request leaves them out.

    The remaining fields follow from these: ``successors`` and ``predecessors`` over links,
    ``flow`` over every edge that may be taken, ``forward`` the same without the edges that close
    a loop and in topological order, and ``depth``, the longest remaining path in stages.
    """

    stages: tuple[Stage, ...] = ()
    links: tuple[Link, ...] = ()
    inputs: tuple[ValueName, ...] = (ValueName("input"),)
    reducers: tuple[tuple[ValueName, Reducer], ...] = ()
    on_loop_limit: OnLoopLimit = "raise"
    optional: tuple[ValueName, ...] = ()
    by_name: Mapping[StageName, Stage] = field(init=False, repr=False, compare=False)
    successors: Adjacency = field(init=False, repr=False, compare=False)
    predecessors: Adjacency = field(init=False, repr=False, compare=False)
    flow: Adjacency = field(init=False, repr=False, compare=False)
    forward: Adjacency = field(init=False, repr=False, compare=False)
    depth: Mapping[StageName, int] = field(init=False, repr=False, compare=False)
    #: what others have made of this version, by the key under which they keep it here
    made: WeakKeyDictionary[Any, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name: dict[StageName, Stage] = {}
        for stage in self.stages:
            by_name.setdefault(stage.name, stage)
        rank = {name: index for index, name in enumerate((*by_name, END))}
        links = sorted(dict.fromkeys(self.links), key=lambda link: rank.get(link[1], len(rank)))
        walkable = [link for link in links if link[0] != END and link[1] != START]
        successors = _group(walkable, (START, *by_name))
        flow = successors | {
            stage.name: branch_targets(stage, by_name)
            for stage in self.stages
            if isinstance(stage, Branch)
        }
        acyclic = forward(flow, (START,))
        self._derive("links", tuple(links))
        self._derive("by_name", MappingProxyType(by_name))
        self._derive("successors", MappingProxyType(successors))
        back = [(target, source) for source, target in links]
        self._derive("predecessors", MappingProxyType(_group(back, (*by_name, END))))
        self._derive("flow", MappingProxyType(flow))
        self._derive("forward", MappingProxyType(acyclic))
        depth = depths(acyclic, _UNCOUNTED)
        self._derive("made", WeakKeyDictionary[Any, Any]())
        self._derive("depth", MappingProxyType({name: depth[name] for name in by_name}))

    def __reduce__(self) -> tuple[object, ...]:
        fixed = (self.inputs, self.reducers, self.on_loop_limit, self.optional)
        return (type(self), (self.stages, self.links, *fixed))

    @property
    def edges(self) -> tuple[Edge, ...]:
        """Return links and declared condition targets, each with its kind."""
        chosen = tuple(
            Edge(stage.name, target, "condition")
            for stage in self.stages
            if isinstance(stage, Branch)
            for target in stage.targets or ()
        )
        return tuple(Edge(*link, self._kind(*link)) for link in self.links) + chosen

    def freeze(self) -> FrozenRAGraph:
        """Return itself, so that a graph and its builder can be used alike."""
        return self

    def edit(
        self,
        *,
        add: Iterable[Stage] = (),
        replace: Iterable[Stage] = (),
        remove: Iterable[str] = (),
        link: Iterable[tuple[str, str]] = (),
        unlink: Iterable[tuple[str, str]] = (),
    ) -> Self:
        """Apply many changes with one copy; return this very object if they change nothing.

        ``replace`` puts a stage in the place of the one of the same name. A removed stage takes
        its links along; Branch targets that name it stay and fail verification.
        """
        gone = set(remove)
        dropped = set(unlink)
        instead = {stage.name: stage for stage in replace}
        kept = (stage for stage in self.stages if stage.name not in gone)
        stages = (*(instead.get(stage.name, stage) for stage in kept), *add)
        linked = ((StageName(source), StageName(target)) for source, target in link)
        links = tuple(pair for pair in self.links if pair not in dropped and gone.isdisjoint(pair))
        fixed = (self.inputs, self.reducers, self.on_loop_limit, self.optional)
        edited = type(self)(stages, (*links, *linked), *fixed)
        return self if edited == self else edited

    def _kind(self, source: StageName, target: StageName) -> EdgeKind:
        writer, reader = self.by_name.get(source), self.by_name.get(target)
        if reader is None:
            return "control"
        written = self.inputs if writer is None else (writer.output,)
        carries = reader.reads_all or not set(reader.inputs).isdisjoint(written)
        return "data" if carries else "control"

    def _derive(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


def branch_targets(branch: Branch, stages: Iterable[StageName]) -> tuple[StageName, ...]:
    """Return everything a branch may choose: what it declares, else every stage and END."""
    return (*stages, END) if branch.targets is None else branch.targets


def _group(
    pairs: Iterable[Link], names: Iterable[StageName]
) -> dict[StageName, tuple[StageName, ...]]:
    grouped: dict[StageName, list[StageName]] = {name: [] for name in names}
    for key, value in pairs:
        grouped.setdefault(key, []).append(value)
    return {key: tuple(values) for key, values in grouped.items()}
