"""The stage whose user code chooses what runs next."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rag_accel.engine_api import PrimitiveKind
from rag_accel.graph.nodes import Condition, StageName
from rag_accel.graph.prompt import ValueName
from rag_accel.graph.stages.kind import (
    Counts,
    Engines,
    LineAttribute,
    Stage,
    StageKind,
    Step,
    check_name,
    function,
    is_texts,
    register_stage,
)


@dataclass(frozen=True, slots=True)
class Branch:
    """A stage whose ``condition`` chooses what runs next from the mapping of all values.

    It answers with a stage name, a list of them or END. ``targets`` declares all it may answer;
    ``None`` leaves every stage and END possible.
    """

    name: StageName
    condition: Condition
    targets: tuple[StageName, ...] | None = None
    inputs: tuple[ValueName, ...] = field(default=(), init=False, repr=False, compare=False)
    reads_all: bool = field(default=True, init=False, repr=False, compare=False)
    output: None = field(default=None, init=False, repr=False, compare=False)
    engine: None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_name(self.name)


def _steps(stage: Branch, engines: Engines, counts: Counts) -> tuple[Step, ...]:
    return (Step(PrimitiveKind.CONDITION),)


def _told_targets(value: tuple[StageName, ...] | None, stage: Stage, names: object) -> Any:
    return None if value is None else list(value)


def _read_targets(value: Any) -> tuple[StageName, ...] | None:
    return None if value is None else tuple(value)


def _are_targets(value: object) -> bool:
    return value is None or is_texts(value)


register_stage(
    StageKind(
        Branch,
        _steps,
        engines=(),
        line={
            "condition": function("condition"),
            "targets": LineAttribute(
                "a list of texts, or null",
                _are_targets,
                write=_told_targets,
                read=_read_targets,
            ),
        },
        of_last=("condition", "targets"),
    )
)
