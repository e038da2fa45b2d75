"""The context of passes: engines, reducers and options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rag_accel.engine_api import BorrowedEngine, EngineProfile
from rag_accel.graph.primitives import Primitive
from rag_accel.graph.prompt import ValueName


@dataclass(frozen=True, slots=True)
class PassContext:
    """The surroundings of a primitive graph.

    Args:
        engines: profiles of owned engines and descriptions of borrowed ones, by name.
        reduced: values that a user's reducer folds when they are read.
        enabled: names of the passes that run; ``None`` for all there are.
        estimated: names of further passes that run where their estimates say that they save time.
    """

    engines: Mapping[str, EngineProfile | BorrowedEngine] = field(
        default_factory=dict[str, EngineProfile | BorrowedEngine]
    )
    reduced: frozenset[ValueName] = frozenset()
    enabled: frozenset[str] | None = None
    estimated: frozenset[str] = frozenset()

    def owned(self, primitive: Primitive) -> EngineProfile | None:
        """Return the profile of the owned engine that executes a primitive; None for any other."""
        engine = self.engines.get(primitive.engine) if primitive.engine is not None else None
        return engine if isinstance(engine, EngineProfile) else None
