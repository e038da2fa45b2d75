"""Say what an embedding engine needs of a model, and compute one micro-batch with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from rag_accel.engines.embedding.prepared_texts import PreparedTexts
from rag_accel.engines.embedding.sentence_encoder import Role
from rag_accel.engines.embedding.vectors import checked_rows
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

    def prepare(self, texts: Sequence[str], role: Role) -> PreparedTexts:
        """Make texts ready to run."""
        ...


@dataclass(slots=True)
class Piece:
    """Compute one micro-batch; ``rows`` are those of all slots that were prepared together."""

    role: Role
    prepared: PreparedTexts
    rows: dict[Slot[str], int]
    slots: list[Slot[str]]
    end: Callable[[], Any] | None = None

    def start(self, threads: int) -> None:
        """Let it compute; if that raises, ``take`` tries again and raises then."""
        with suppress(Exception):
            self.end = self._encoding(self.slots, threads)

    def is_done(self, timeout_s: float) -> bool:
        """Tell whether ``take`` need not wait, at the latest after so many seconds."""
        wait = getattr(self.end, "wait", None)
        try:
            return wait is None or wait(timeout_s)
        except Exception:  # it has ended badly: taking it says how
            return True

    def take(self, threads: int, slots: list[Slot[str]]) -> Any:
        """Return what was computed for ``slots``; fewer than there were are computed anew."""
        end = self.end
        if end is None or len(slots) != len(self.slots):
            end = self._encoding(slots, threads)
        return checked_rows(end(), len(slots))

    def _encoding(self, slots: list[Slot[str]], threads: int) -> Callable[[], Any]:
        return self.prepared.start([self.rows[slot] for slot in slots], threads)
