"""What passes may know beside the graph: its engines, its reducers and what is switched on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from rag_accel.engine_api import BorrowedEngine, EngineProfile
from rag_accel.graph.order import topological
from rag_accel.graph.primitives import Primitive, PrimitiveGraph, PrimitiveName
from rag_accel.graph.prompt import ValueName


@dataclass(frozen=True, slots=True)
class PassContext:
    """The surroundings of a primitive graph.

    Args:
        engines: profiles of owned engines and descriptions of borrowed ones, by name.
        reduced: values that a reducer of the user's folds when they are read.
        enabled: names of the passes that run; ``None`` for all there are.
    """

    engines: Mapping[str, EngineProfile | BorrowedEngine] = field(
        default_factory=dict[str, EngineProfile | BorrowedEngine]
    )
    reduced: frozenset[ValueName] = frozenset()
    enabled: frozenset[str] | None = None


# What a pass changed: which primitives came and went, and which wait for something else.


@dataclass(frozen=True, slots=True)
class Rewiring:
    """A primitive, what it waited for, and what it waits for now."""

    name: PrimitiveName
    before: tuple[PrimitiveName, ...]
    now: tuple[PrimitiveName, ...]

    def __str__(self) -> str:
        return f"{self.name} waits for {_listed(self.now)} instead of {_listed(self.before)}"


@dataclass(frozen=True, slots=True)
class Change:
    """What one pass did to one graph. ``str()`` is a text of one line or several.

    ``altered`` primitives differ in something else than what they wait for and their depth.
    """

    by: str
    added: tuple[PrimitiveName, ...] = ()
    removed: tuple[PrimitiveName, ...] = ()
    altered: tuple[PrimitiveName, ...] = ()
    rewired: tuple[Rewiring, ...] = ()

    def __str__(self) -> str:
        told = [
            *(f"{name} is new" for name in self.added),
            *(f"{name} is gone" for name in self.removed),
            *(f"{name} is altered" for name in self.altered),
            *map(str, self.rewired),
        ]
        return "\n".join(f"{self.by}: {line}" for line in told or ["nothing to change"])


def change_between(by: str, before: PrimitiveGraph, now: PrimitiveGraph) -> Change:
    """Compare a graph before and after a pass; depths and the order of the lines do not count."""
    both = [(old, now.by_name[name]) for name, old in before.by_name.items() if name in now.by_name]
    return Change(
        by,
        added=tuple(name for name in now.by_name if name not in before.by_name),
        removed=tuple(name for name in before.by_name if name not in now.by_name),
        altered=tuple(old.name for old, new in both if _placed_as(old, new) != new),
        rewired=tuple(
            Rewiring(old.name, old.after, new.after)
            for old, new in both
            if set(old.after) != set(new.after)
        ),
    )


def _placed_as(old: Primitive, new: Primitive) -> Primitive:
    return replace(old, after=new.after, depth=new.depth)


def _listed(names: Sequence[PrimitiveName]) -> str:
    return ", ".join(names) or "nothing"


# Tell what has surely ended when a primitive begins, and keep that true across regions.

Earlier: TypeAlias = Mapping[PrimitiveName, frozenset[PrimitiveName]]
Freed: TypeAlias = Mapping[PrimitiveName, tuple[PrimitiveName, ...]]


def all_earlier(graph: PrimitiveGraph) -> Earlier:
    """Return for each primitive everything that has ended when it begins, earlier regions too."""
    earlier: dict[PrimitiveName, frozenset[PrimitiveName]] = {}
    for name in topological(graph.successors):
        after = graph.by_name[name].after
        behind = (earlier[source] for source in after if source in earlier)
        earlier[name] = frozenset(after).union(*behind)
    return earlier


def freed_from(before: PrimitiveGraph, now: PrimitiveGraph) -> Freed:
    """Return what the end of a primitive told about others before and does not tell now.

    What was joined with another is told of by that one.
    """
    earlier, still = all_earlier(before), all_earlier(now)
    order = (*before.external, *(name for name in before.by_name if name in now.by_name))
    freed = {
        name: tuple(one for one in order if one in earlier[name] and one not in still[name])
        for name in now.by_name
        if name in earlier
    }
    return {name: others for name, others in freed.items() if others}


def restore_waits(graph: PrimitiveGraph, freed: Freed) -> PrimitiveGraph:
    """Let what waits for a primitive of an earlier region wait for all that this once told.

        b.embedding: EMBEDDING@embedder(a)  after x.searching

    where ``x.searching`` was freed from ``a.decoding``, becomes

        b.embedding: EMBEDDING@embedder(a)  after x.searching, a.decoding
    """
    if freed.keys().isdisjoint(graph.external):
        return graph
    primitives = tuple(_restored(primitive, graph, freed) for primitive in graph.primitives)
    waited = (source for primitive in primitives for source in primitive.after)
    external = tuple(dict.fromkeys(source for source in waited if source not in graph.by_name))
    return PrimitiveGraph(primitives, external)


def _restored(one: Primitive, graph: PrimitiveGraph, freed: Freed) -> Primitive:
    more = (
        name
        for source in one.after
        if source not in graph.by_name
        for name in freed.get(source, ())
    )
    after = tuple(dict.fromkeys((*one.after, *more)))
    return one if after == one.after else replace(one, after=after)
