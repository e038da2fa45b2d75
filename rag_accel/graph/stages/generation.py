"""The stage that asks an LLM for a completion."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rag_accel.engine_api import EngineProfile, PrimitiveKind
from rag_accel.graph.nodes import DEFAULT_LLM, NO_OUTPUT, EngineName, StageName
from rag_accel.graph.option_inputs import Input
from rag_accel.graph.prompt import ValueName, placeholders
from rag_accel.graph.stages.kind import (
    RECOVERY,
    Counts,
    Engines,
    Stage,
    StageKind,
    Step,
    check_positive,
    register_stage,
    settle,
    write_plain,
)
from rag_accel.graph.stages.retry import Constant, Retry


@dataclass(frozen=True, slots=True)
class Generation:
    """A stage that asks an LLM for one completion of ``prompt``.

    ``prompt`` and ``system`` are templates; what they name are the stage's ``inputs``. An empty
    ``output`` stands for the stage's own name. ``max_tokens`` may be an ``Input``.
    """

    name: StageName
    prompt: str
    output: ValueName = NO_OUTPUT
    system: str | None = None
    stop: tuple[str, ...] = ()
    max_tokens: int | Input | None = None
    engine: EngineName = DEFAULT_LLM
    retry: int | Retry | None = None
    fallback: str | Constant | None = None
    inputs: tuple[ValueName, ...] = field(init=False)
    reads_all: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        named = (*placeholders(self.system or ""), *placeholders(self.prompt))
        settle(self, inputs=tuple(dict.fromkeys(named)))
        check_positive(self, "max_tokens")


def _steps(stage: Generation, engines: Engines, counts: Counts) -> tuple[Step, ...]:
    decoding = Step(PrimitiveKind.DECODING, stage.engine)
    engine = engines.get(stage.engine)
    if isinstance(engine, EngineProfile) and PrimitiveKind.PREFILLING in engine.kinds:
        return (Step(PrimitiveKind.PREFILLING, stage.engine), decoding)
    return (decoding,)


def _stops(value: Any, stage: Stage, names: object) -> list[str] | None:
    return list(value) or None


register_stage(
    StageKind(
        Generation,
        _steps,
        line={
            "prompt": write_plain,
            "system": write_plain,
            "stop": _stops,
            "max_tokens": write_plain,
            **RECOVERY,
        },
        of_first=("prompt", "system"),
        of_last=("stop", "max_tokens"),
    )
)
