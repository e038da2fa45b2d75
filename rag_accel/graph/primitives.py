"""The primitive graph: pieces of engine work and their dependencies (Teola 4.1).

The same value serves as p-graph (one stage, one or two primitives) and as e-graph (after the
passes); ``spec.verify`` knows the difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NewType, Self

from rag_accel.engine_api.kinds import PrimitiveKind
from rag_accel.graph.growth import InstanceName, stage_of
from rag_accel.graph.nodes import EngineName, StageName
from rag_accel.graph.order import forward
from rag_accel.graph.prompt import ValueName

PrimitiveName = NewType("PrimitiveName", str)


@dataclass(frozen=True, slots=True)
class Primitive:
    """One piece of work for one engine.

    Args:
        name: unique in its request; ``instance.kind`` in lower case unless a pass cut it up.
        instance: the run of a stage it belongs to.
        kind: what is to be done.
        engine: what does it; None for user code and conditions.
        inputs: values it reads, in the order its kind expects; with ``reads_all`` any value.
        output: the value it writes, if it writes one.
        after: primitives whose end it waits for.
        depth: longest remaining path in primitives, loops counted once; 0 at the end.
        size: how many items it probably is, for batch limits.
        attributes: what the stage fixed beforehand, such as ``("top_k", 5)``.
    """

    name: PrimitiveName
    instance: InstanceName
    kind: PrimitiveKind
    engine: EngineName | None
    inputs: tuple[ValueName, ...] = ()
    output: ValueName | None = None
    after: tuple[PrimitiveName, ...] = ()
    depth: int = 0
    size: int = 1
    reads_all: bool = False
    attributes: tuple[tuple[str, Any], ...] = ()

    @property
    def stage(self) -> StageName:
        """Return the stage whose run it belongs to."""
        return stage_of(self.instance)

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return a static attribute, or ``default`` if the stage did not set it."""
        return dict(self.attributes).get(name, default)


@dataclass(frozen=True, slots=True)
class PrimitiveGraph:
    """The primitives of a whole graph or of one region, in topological order.

    ``external`` names primitives of earlier regions that some of these wait for.
    """

    primitives: tuple[Primitive, ...] = ()
    external: tuple[PrimitiveName, ...] = ()
    by_name: Mapping[PrimitiveName, Primitive] = field(init=False, repr=False, compare=False)
    successors: Mapping[PrimitiveName, tuple[PrimitiveName, ...]] = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        by_name: dict[PrimitiveName, Primitive] = {}
        for primitive in self.primitives:
            by_name.setdefault(primitive.name, primitive)
        successors: dict[PrimitiveName, list[PrimitiveName]] = {name: [] for name in by_name}
        for primitive in by_name.values():
            for source in primitive.after:
                if source in successors:
                    successors[source].append(primitive.name)
        frozen = {name: tuple(targets) for name, targets in successors.items()}
        object.__setattr__(self, "by_name", MappingProxyType(by_name))
        object.__setattr__(self, "successors", MappingProxyType(frozen))

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.primitives, self.external))

    def writers(self, value: ValueName) -> list[Primitive]:
        return [primitive for primitive in self.primitives if primitive.output == value]

    def edit(self, *, put: Iterable[Primitive] = (), remove: Iterable[str] = ()) -> Self:
        """Apply many changes with one copy; return this very object if they change nothing.

        ``put`` replaces the primitive of the same name or adds one. The result is in topological
        order again and every depth is recomputed from the primitives nothing waits for, which
        keep theirs. A primitive that waited for a removed one still does, and fails verification.
        """
        wanted = dict(self.by_name)
        for name in remove:
            wanted.pop(PrimitiveName(name), None)
        wanted.update((primitive.name, primitive) for primitive in put)
        if wanted == self.by_name:
            return self
        drafted = type(self)(tuple(wanted.values()), self.external)
        edited = type(self)(_reordered(drafted), self.external)
        return self if edited == self else edited


def _reordered(graph: PrimitiveGraph) -> tuple[Primitive, ...]:
    acyclic = forward(graph.successors)
    depth: dict[PrimitiveName, int] = {}
    for name in reversed(acyclic):
        own = graph.by_name[name].depth
        depth[name] = max((depth[target] + 1 for target in acyclic[name]), default=own)
    ordered: list[Primitive] = []
    for name in acyclic:
        primitive = graph.by_name[name]
        same = primitive.depth == depth[name]
        ordered.append(primitive if same else replace(primitive, depth=depth[name]))
    return tuple(ordered)
