"""Define what a rule about a graph is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from rag_accel.engine_api.kinds import HasKinds

Graph = TypeVar("Graph")
Engines: TypeAlias = Mapping[str, HasKinds] | None


@dataclass(frozen=True, slots=True)
class Rule(Generic[Graph]):
    """Name a property of a graph; ``check`` yields a line for each thing that lacks it."""

    name: str
    check: Callable[[Graph, Engines], Iterable[str]]

    def offenders(self, graph: Graph, engines: Engines) -> list[str]:
        """Return the lines, each headed by the rule's name."""
        return [f"{self.name}: {line}" for line in self.check(graph, engines)]
