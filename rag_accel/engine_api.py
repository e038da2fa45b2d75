"""Define the seam between the co-scheduler and whatever executes primitives.

Two kinds of engine meet here. An *owned* engine implements ``Engine``: it is stepped in a worker
thread of its own, and every method but ``interrupt`` is called on that thread only, so an engine
needs no locks. A *borrowed* engine is any object the user made: it is described by a
``BorrowedEngine``, the scheduler grants a permit and the call runs where the caller is.

Nothing here executes anything, and nothing here imports the scheduler or an engine.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NewType, Protocol, runtime_checkable

from rag_accel.graph.kinds import PrimitiveKind as PrimitiveKind

WorkId = NewType("WorkId", str)
Handle = NewType("Handle", str)

OutputKind = Literal["progress", "partial", "final", "error"]
Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Document:
    """Hold one retrievable text. ``id`` is unique inside its index."""

    id: str
    text: str
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class ScoredDocument:
    """Pair a document with the score of the stage that chose it (higher is nearer)."""

    document: Document
    score: float


@dataclass(frozen=True, slots=True)
class Message:
    """Hold one chat turn."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class TextBatch:
    """Ask for one vector per text. The final value is ``vectors: [len(texts), dim], float32``."""

    texts: tuple[str, ...]
    role: Literal["query", "document"] = "query"


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """Ask for the ``k`` nearest documents of ``vector: [dim], float32``.

    ``where`` keeps only documents whose metadata equals every given value; ``nprobe`` overrides
    the index's own. The final value is ``tuple[ScoredDocument, ...]``, best first.
    """

    vector: Any
    k: int
    where: Mapping[str, Any] | None = None
    nprobe: int | None = None


@dataclass(frozen=True, slots=True)
class RerankBatch:
    """Ask for the documents ordered by relevance to ``query``, the best ``top_n`` of them."""

    query: str
    documents: tuple[Document, ...]
    top_n: int | None = None


@dataclass(frozen=True, slots=True)
class IngestBatch:
    """Ask an index to take documents with their ``vectors: [len(documents), dim], float32``."""

    documents: tuple[Document, ...]
    vectors: Any


@dataclass(frozen=True, slots=True)
class GenerationInput:
    """Ask for one completion. ``options`` are sampling options by their OpenAI names.

    The messages are always the whole prompt, also where work names a handle: of what was prefilled
    under the handle an engine reuses only the common prefix. For PARTIAL_PREFILLING they are the
    beginning of a prompt, which may end within a message and within a word.
    """

    messages: tuple[Message, ...]
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class GenerationOutput:
    """Hold a finished completion and its token counts."""

    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: str = "stop"


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


@dataclass(frozen=True, slots=True)
class LatencyModel:
    """Predict a step's seconds as ``base_s + per_item_s * items`` (WindVE's linear model)."""

    base_s: float = 0.0
    per_item_s: float = 0.0

    def predict_s(self, items: int) -> float:
        """Return the predicted seconds of a step over ``items`` items."""
        return self.base_s + self.per_item_s * items


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """Describe what an owned engine does and how it likes to be driven.

    Args:
        kinds: primitive kinds it executes.
        max_batch: most items worth putting into one step.
        latency: first guess of its step time; the driver refines it from what it measures.
        max_threads: most compute threads a step can use; 0 if it computes elsewhere (remote).
        stepped: whether work may outlive a step, so that new work joins at step borders.
        interruptible: whether ``interrupt()`` ends a waiting step early.
        speculatable: whether it may run work whose need is not certain.
        pure: whether equal payloads give equal results, so that runs may be shared.
        capabilities: optional abilities by name, such as ``"stream"`` or ``"hint"``.
        speed_key: names all that decides how fast it is on a given machine; what was measured of
            one engine holds for another with the same. Empty where that is not known.
    """

    kinds: frozenset[PrimitiveKind]
    max_batch: int = 64
    latency: LatencyModel = LatencyModel()
    max_threads: int = 1
    stepped: bool = False
    interruptible: bool = False
    speculatable: bool = False
    pure: bool = False
    capabilities: frozenset[str] = frozenset()
    speed_key: str = ""


ITEMWISE: Final = "itemwise"
"""Capability of an engine that embeds or reranks each item as if it were alone.

Its vectors and scores do not depend on the other items of a ``TextBatch`` or ``RerankBatch``, it
ranks by score, and equal scores keep the order given. So such a batch may be handed over in parts,
as works of their own, and the results of the parts make up that of the whole.
"""

ENDS_IN_TIME: Final = "ends_in_time"
"""Capability of a stepped engine whose steps end soon after ``StepBudget.time_s``.

It serves the oldest work first, so that what a step leaves over is not left over for ever.
"""

BOUNDS_ITS_WORK: Final = "bounds_its_work"
"""Capability of a stepped engine that waits for what computes elsewhere, such as a server.

It ends each work by a limit of its own, so that a long wait is no sign that it hangs. A step in
which nothing has come ends soon after ``StepBudget.time_s``: one that does not is still noticed.
"""


@runtime_checkable
class Engine(Protocol):
    """Execute primitives in steps. All methods but ``interrupt`` run on one worker thread."""

    @property
    def profile(self) -> EngineProfile:
        """Return what this engine does; constant after construction and cheap."""
        ...

    def submit(self, work: Sequence[EngineRequest]) -> None:
        """Take work; compute nothing yet.

        Work that cannot be valid is remembered and reported as ``error`` by the next step: one bad
        item never rejects its neighbours. Raises only when the engine itself is broken.
        """
        ...

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        """Advance what was submitted and return what happened.

        An engine whose profile is not ``stepped`` ends everything submitted. One that is starts no
        new piece once ``budget.time_s`` is over, and keeps what is left. From a thousand steps in a
        row that take less than a millisecond on average, one must report something (``progress``
        will do), or all it holds is taken for lost. Raising means that the whole step is lost; the
        scheduler then retries its members one by one.
        """
        ...

    def cancel(self, ids: Sequence[WorkId]) -> None:
        """Forget work; unknown ids are ignored. No output for these ids follows."""
        ...

    def release(self, handles: Sequence[Handle]) -> None:
        """Free engine-owned state; unknown handles are ignored."""
        ...

    def hint(self, documents: Sequence[str]) -> None:
        """Learn ids of documents likely to be needed soon; may be ignored."""
        ...

    def interrupt(self) -> None:
        """Make a waiting step return soon. The only method called from another thread."""
        ...

    def close(self) -> None:
        """Free everything; called once, after the last step."""
        ...


class EngineBase:
    """Give an owned engine the optional methods, doing nothing."""

    def cancel(self, ids: Sequence[WorkId]) -> None:
        """Forget nothing: a non-stepped engine holds no work between steps."""

    def release(self, handles: Sequence[Handle]) -> None:
        """Free nothing: this engine hands out no handles."""

    def hint(self, documents: Sequence[str]) -> None:
        """Ignore the hint."""

    def interrupt(self) -> None:
        """Do nothing: steps of this engine do not wait."""

    def close(self) -> None:
        """Free nothing."""


@dataclass(frozen=True, slots=True)
class BorrowedEngine:
    """Describe an object the user made: its calls are admitted, never moved.

    ``max_concurrency`` bounds calls in flight; ``None`` never holds one back. ``pure`` says that
    the user named it as safe to share among equal concurrent calls.
    """

    name: str
    kinds: frozenset[PrimitiveKind]
    max_concurrency: int | None = None
    pure: bool = False
