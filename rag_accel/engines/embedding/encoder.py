"""Say what an embedding engine needs of a model, and compute one micro-batch with it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from rag_accel.engines.embedding.sentence_encoder import PreparedTexts, Role
from rag_accel.engines.embedding.vectors import checked_rows
from rag_accel.engines.micro_batches import StepDeadline
from rag_accel.engines.pending import Slot


class Encoder(Protocol):
    """Say what an embedding engine needs of a model."""

    def same_batch(self, role: Role) -> Role:
        """Return the role whose batches this role can join."""
        ...

    def dimension(self, role: Role) -> int | None:
        """Return the components of a vector of this role, None where unknown."""
        ...

    def estimate(self, text: str) -> int:
        """Return a text's cost in the unit of the limits, at least 1."""
        ...

    def is_reentrant(self) -> bool:
        """Tell whether prepared texts may be encoded by several threads at once."""
        ...

    def prepare(self, texts: Sequence[str], role: Role) -> PreparedTexts:
        """Make texts ready to run."""
        ...


@dataclass(slots=True)
class Piece:
    """Compute one micro-batch, maybe beside others; ``rows`` are those of all slots."""

    prepared: PreparedTexts
    rows: dict[Slot[str], int]
    slots: list[Slot[str]]
    is_started: bool = False

    def start(self, deadline: StepDeadline) -> Any:
        """Compute it, unless the step's time is over."""
        self.is_started = deadline.may_start()
        return self._encode(self.slots) if self.is_started else None

    def take(self, end: Future[Any], slots: list[Slot[str]]) -> Any:
        """Return what was computed for ``slots``; fewer than there were are computed anew."""
        return end.result() if len(slots) == len(self.slots) else self._encode(slots)

    def _encode(self, slots: list[Slot[str]]) -> Any:
        found = self.prepared.encode([self.rows[slot] for slot in slots])
        return checked_rows(found, len(slots))
