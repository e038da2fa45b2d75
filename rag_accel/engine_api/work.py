"""Define how work is handed to an owned engine and what it reports of it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal, NewType

from rag_accel.engine_api.kinds import PrimitiveKind

WorkId = NewType("WorkId", str)
Handle = NewType("Handle", str)

OutputKind = Literal["progress", "partial", "final", "error"]


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """Hand one sub-stage to an owned engine.

    Args:
        id: unique among all work this engine has not finished.
        request_id: the request it belongs to.
        kind: one of the engine's ``profile.kinds``.
        payload: the dataclass of that kind, such as ``TextBatch``.
        namespace: tenant; an engine never lets cached results cross it.
        handle: engine-owned state to resume from, if any.
        size: how many items this is, for batch limits.
        stream: whether ``partial`` outputs are wanted.
    """

    id: WorkId
    request_id: str
    kind: PrimitiveKind
    payload: Any
    namespace: str = ""
    handle: Handle | None = None
    size: int = 1
    stream: bool = False


@dataclass(frozen=True, slots=True)
class EngineOutput:
    """Report on one sub-stage.

    ``final`` and ``error`` end the work; after them the engine has forgotten its id. A ``partial``
    carries an increment (a text delta), ``progress`` only a new handle or revision.
    """

    id: WorkId
    kind: OutputKind
    value: Any = None
    error: BaseException | None = None
    handle: Handle | None = None
    revision: int = 0
    speculated_on: Hashable | None = None


@dataclass(frozen=True, slots=True)
class StepBudget:
    """Bound one step: stop starting new pieces after ``time_s``; compute on ``threads`` threads."""

    time_s: float | None = None
    threads: int = 1
