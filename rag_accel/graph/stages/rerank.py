"""The stage that orders documents by relevance."""

from __future__ import annotations

from dataclasses import dataclass, field

from rag_accel.engine_api import PrimitiveKind
from rag_accel.graph.nodes import DEFAULT_QUERY, DEFAULT_RERANKER, NO_OUTPUT, EngineName, StageName
from rag_accel.graph.option_inputs import Input
from rag_accel.graph.prompt import ValueName
from rag_accel.graph.stages.kind import (
    RECOVERY,
    Counts,
    Engines,
    StageKind,
    Step,
    check_positive,
    register_stage,
    settle,
    write_plain,
)
from rag_accel.graph.stages.retry import Constant, Retry


@dataclass(frozen=True, slots=True)
class Rerank:
    """A stage that orders the value ``documents`` by relevance to ``query`` and keeps ``top_n``.

    ``top_n`` may be an ``Input``.
    """

    name: StageName
    documents: ValueName
    query: ValueName = DEFAULT_QUERY
    top_n: int | Input | None = None
    output: ValueName = NO_OUTPUT
    engine: EngineName = DEFAULT_RERANKER
    retry: int | Retry | None = None
    fallback: str | Constant | None = None
    inputs: tuple[ValueName, ...] = field(init=False)
    reads_all: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        settle(self, inputs=(self.query, self.documents))
        check_positive(self, "top_n")


def _steps(stage: Rerank, engines: Engines, counts: Counts) -> tuple[Step, ...]:
    items = counts.get(stage.documents, 1)
    return (Step(PrimitiveKind.RERANKING, stage.engine, items=items),)


def _written(stage: Rerank, counts: Counts) -> int:
    bounds = (counts.get(stage.documents), stage.top_n)
    return min((bound for bound in bounds if isinstance(bound, int)), default=1)


register_stage(
    StageKind(
        Rerank,
        _steps,
        line={"top_n": write_plain, **RECOVERY},
        of_last=("top_n",),
        written=_written,
    )
)
