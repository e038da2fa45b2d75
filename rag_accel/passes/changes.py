"""Changes of primitive graphs by passes: primitives added, removed, altered and rewired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rag_accel.graph.primitives import PrimitiveGraph, PrimitiveName


@dataclass(frozen=True, slots=True)
class Rewiring:
    """A primitive with its dependencies before and now."""

    name: PrimitiveName
    before: tuple[PrimitiveName, ...]
    now: tuple[PrimitiveName, ...]

    def __str__(self) -> str:
        return f"{self.name} waits for {_listed(self.now)} instead of {_listed(self.before)}"


@dataclass(frozen=True, slots=True)
class Change:
    """The effect of one pass on one graph. ``str()`` is a text of one line or several.

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
        altered=tuple(
            old.name for old, new in both if replace(old, after=new.after, depth=new.depth) != new
        ),
        rewired=tuple(
            Rewiring(old.name, old.after, new.after)
            for old, new in both
            if set(old.after) != set(new.after)
        ),
    )


def _listed(names: Sequence[PrimitiveName]) -> str:
    return ", ".join(names) or "nothing"
