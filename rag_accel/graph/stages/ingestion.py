"""The stage that adds documents to an index."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

from rag_accel.engine_api import PrimitiveKind
from rag_accel.graph.nodes import DEFAULT_EMBEDDER, DEFAULT_INDEX, NO_OUTPUT, EngineName, StageName
from rag_accel.graph.prompt import ValueName
from rag_accel.graph.stages.kind import (
    RECOVERY,
    Counts,
    Engines,
    StageKind,
    Step,
    register_stage,
    settle,
    write_unless,
)
from rag_accel.graph.stages.retry import Constant, Retry

EXPECTED_DOCUMENTS: Final = 16
"""Of an ingestion, where nothing says how many it brings: more than a query, which is one text."""


@dataclass(frozen=True, slots=True)
class Ingestion:
    """A stage that embeds the value ``documents`` and adds them to an index; it writes their ids.

    A search that is to find them has to run after it.
    """

    name: StageName
    documents: ValueName
    output: ValueName = NO_OUTPUT
    engine: EngineName = DEFAULT_INDEX
    embedder: EngineName = DEFAULT_EMBEDDER
    retry: int | Retry | None = None
    fallback: str | Constant | None = None
    inputs: tuple[ValueName, ...] = field(init=False)
    reads_all: bool = field(default=False, init=False, repr=False, compare=False)
    #: what its texts are embedded as
    role: ClassVar[str] = "document"

    def __post_init__(self) -> None:
        settle(self, inputs=(self.documents,))


def _steps(stage: Ingestion, engines: Engines, counts: Counts) -> tuple[Step, ...]:
    items = counts.get(stage.documents, EXPECTED_DOCUMENTS)
    return (
        Step(PrimitiveKind.EMBEDDING, stage.embedder, items=items),
        Step(PrimitiveKind.INGESTION, stage.engine, reads_stage=True),
    )


register_stage(
    StageKind(
        Ingestion,
        _steps,
        engines=("embedder", "engine"),
        line={"embedder": write_unless(DEFAULT_EMBEDDER), **RECOVERY},
        of_first=("role",),
    )
)
