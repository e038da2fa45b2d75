"""The stage that finds documents in an index."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from rag_accel.engine_api import BorrowedEngine, Capability, EngineProfile, PrimitiveKind
from rag_accel.graph.lines import References
from rag_accel.graph.nodes import (
    DEFAULT_EMBEDDER,
    DEFAULT_INDEX,
    DEFAULT_QUERY,
    NO_OUTPUT,
    EngineName,
    MetadataFilter,
    StageName,
)
from rag_accel.graph.option_inputs import Input, is_input, probable
from rag_accel.graph.prompt import ValueName
from rag_accel.graph.stages.kind import (
    RECOVERY,
    Counts,
    Engines,
    Stage,
    StageKind,
    Step,
    is_count,
    is_text,
    option_refused,
    register_stage,
    settle,
    write_plain,
    write_unless,
)
from rag_accel.graph.stages.retry import Constant, Retry

PROBABLE_DOCUMENTS = 5
"""Guessed where each request says how many it wants."""


@dataclass(frozen=True, slots=True)
class Retrieval:
    """A stage that finds the ``top_k`` documents nearest to the value ``query``.

    ``where`` keeps documents whose metadata equals every given value. Both may be an ``Input``,
    as may each value of ``where``. ``embedder`` makes the query's vector unless the index engine
    embeds by itself.
    """

    name: StageName
    query: ValueName = DEFAULT_QUERY
    top_k: int | Input = 5
    where: MetadataFilter | Input = ()
    output: ValueName = NO_OUTPUT
    engine: EngineName = DEFAULT_INDEX
    embedder: EngineName = DEFAULT_EMBEDDER
    retry: int | Retry | None = None
    fallback: str | Constant | None = None
    inputs: tuple[ValueName, ...] = field(init=False)
    reads_all: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        settle(self, inputs=(self.query,))
        if not is_count(self.top_k) and not is_input(self.top_k):
            raise option_refused(self, "top_k", "an integer from 1")
        if not is_input(self.where) and not _is_filter(self.where):
            raise option_refused(self, "where", "a mapping of metadata fields, by text, to values")


def needs_embedder(index: EngineProfile | BorrowedEngine | None) -> bool:
    """Tell whether a retrieval on this index is handed a vector made by another engine."""
    return isinstance(index, EngineProfile) and Capability.EMBEDS not in index.capabilities


def _steps(stage: Retrieval, engines: Engines, counts: Counts) -> tuple[Step, ...]:
    index = engines.get(stage.engine)
    if not needs_embedder(index):
        return (Step(PrimitiveKind.SEARCHING, stage.engine),)
    assert isinstance(index, EngineProfile), "a borrowed index embeds by itself"
    reads_text = Capability.READS_TEXT in index.capabilities
    return (
        Step(PrimitiveKind.EMBEDDING, stage.embedder),
        Step(PrimitiveKind.SEARCHING, stage.engine, reads_stage=reads_text),
    )


def _is_filter(value: object) -> bool:
    if not isinstance(value, tuple):
        return False
    return all(map(_is_pair, cast("tuple[object, ...]", value)))


def _is_pair(value: object) -> bool:
    if not isinstance(value, tuple):
        return False
    pair = cast("tuple[object, ...]", value)
    return len(pair) == 2 and is_text(pair[0])


def _write_filter(value: MetadataFilter | Input, stage: Stage, names: References) -> Any:
    if isinstance(value, Input):
        return value
    return names.encode(dict(value), f"{stage.name}.where") if value else None


register_stage(
    StageKind(
        Retrieval,
        _steps,
        engines=("embedder", "engine"),
        line={
            "top_k": write_plain,
            "where": _write_filter,
            "embedder": write_unless(DEFAULT_EMBEDDER),
            **RECOVERY,
        },
        of_last=("top_k", "where"),
        written=lambda stage, counts: probable(stage.top_k, PROBABLE_DOCUMENTS),
    )
)
