"""The stage whose user code chooses what runs next."""

from __future__ import annotations

from dataclasses import dataclass, field

from rag_accel.engine_api import PrimitiveKind
from rag_accel.graph.nodes import Condition, StageName
from rag_accel.graph.prompt import ValueName
from rag_accel.graph.stages.kind import (
    RECOVERY,
    StageKind,
    Step,
    check_name,
    register_stage,
    write_function,
    write_list,
)
from rag_accel.graph.stages.retry import Retry, check_recovery


@dataclass(frozen=True, slots=True)
class Branch:
    """A stage whose ``condition`` chooses what runs next from the mapping of all values.

    It answers with a stage name, a list of them or END. ``targets`` declares all it may answer;
    ``None`` leaves every stage and END possible.
    """

    name: StageName
    condition: Condition
    targets: tuple[StageName, ...] | None = None
    retry: int | Retry | None = None
    inputs: tuple[ValueName, ...] = field(default=(), init=False, repr=False, compare=False)
    reads_all: bool = field(default=True, init=False, repr=False, compare=False)
    output: None = field(default=None, init=False, repr=False, compare=False)
    engine: None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_name(self.name)
        check_recovery(self)


register_stage(
    StageKind(
        Branch,
        lambda stage, engines, counts: (Step(PrimitiveKind.CONDITION),),
        engines=(),
        line={
            "condition": write_function("condition"),
            "targets": write_list,
            "retry": RECOVERY["retry"],
        },
        of_last=("condition", "targets"),
    )
)
