"""Hold what passes may know beside the graph: its engines, its reducers and what is switched on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rag_accel.engine_api import BorrowedEngine, EngineProfile
from rag_accel.graph.prompt import ValueName


@dataclass(frozen=True, slots=True)
class PassContext:
    """Describe the surroundings of a primitive graph.

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
