"""The profile of an engine: its kinds, capabilities and limits."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from rag_accel.engine_api.kinds import PrimitiveKind


class Capability(enum.StrEnum):
    """The optional abilities of an engine."""

    STREAM = "stream"
    """It reports ``partial`` outputs of work that asks for them."""

    HINT = "hint"
    """It makes use of ``Engine.hint``."""

    EMBEDS = "embeds"
    """An index that is searched by text alone: it makes the vectors itself."""

    READS_TEXT = "text"
    """An index that is searched by a vector and the text it was made of."""

    ITEMWISE = "itemwise"
    """An engine that embeds or reranks each item as if it were alone.

    Its vectors and scores do not depend on the other items of a ``TextBatch`` or ``RerankBatch``,
    it ranks by score, and equal scores keep the order given. So such a batch may be handed over in
    parts, as works of their own, and the results of the parts make up that of the whole.
    """

    ENDS_IN_TIME = "ends_in_time"
    """A stepped engine whose steps end soon after ``StepBudget.time_s``.

    It serves the oldest work first, at least all that has waited long, so that no work is left over
    for ever.
    """

    BOUNDS_ITS_WORK = "bounds_its_work"
    """A stepped engine that waits for what computes elsewhere, such as a server.

    It ends each work by a limit of its own, so that a long wait is no sign that it hangs. A step
    in which nothing has come ends soon after ``StepBudget.time_s``: one that does not is still
    noticed.
    """

    SHARES_CORES = "shares_cores"
    """An engine that keeps cores busy for long, such as an LLM that computes in this process.

    While it has work, the cores are shared among all engines that compute here. Without one, each
    step may use all of them.
    """


@dataclass(frozen=True, slots=True)
class LatencyModel:
    """A step's seconds as ``base_s + per_item_s * items`` (WindVE's linear model)."""

    base_s: float = 0.0
    per_item_s: float = 0.0

    def predict_s(self, items: int) -> float:
        """Return the predicted seconds of a step over ``items`` items."""
        return self.base_s + self.per_item_s * items


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """The kinds, capabilities and limits of an owned engine.

    Args:
        kinds: primitive kinds it executes.
        max_batch: most items worth putting into one step.
        latency: first guess of its step time; the driver refines it from what it measures.
        max_threads: most compute threads a step can use; 0 if it computes elsewhere (remote).
        stepped: whether work may outlive a step, so that new work joins at step borders.
        interruptible: whether ``interrupt()`` ends a waiting step early.
        pure: whether equal payloads give equal results, so that runs may be shared.
        capabilities: its optional abilities, each a ``Capability``.
        samples: small payloads, each with its kind, over which the engine does whatever its first
            requests would wait for; none if the user's own code or another machine computes.
    """

    kinds: frozenset[PrimitiveKind]
    max_batch: int = 64
    latency: LatencyModel = LatencyModel()
    max_threads: int = 1
    stepped: bool = False
    interruptible: bool = False
    pure: bool = False
    capabilities: frozenset[Capability] = frozenset()
    samples: tuple[tuple[PrimitiveKind, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class BorrowedEngine:
    """An object the user made: its calls are admitted, never moved.

    ``max_concurrency`` bounds calls in flight; ``None`` never holds one back. ``pure`` says that
    the user named it as safe to share among equal concurrent calls.
    """

    name: str
    kinds: frozenset[PrimitiveKind]
    max_concurrency: int | None = None
    pure: bool = False
