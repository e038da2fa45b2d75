"""The protocol of owned engines: requests in, steps, outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal, NewType, Protocol, runtime_checkable

from rag_accel.engine_api.kinds import PrimitiveKind
from rag_accel.engine_api.profile import EngineProfile

WorkId = NewType("WorkId", str)
Handle = NewType("Handle", str)

OutputKind = Literal["progress", "partial", "final", "error"]

#: Seconds after its arrival at which a request without a deadline counts as due, so that requests
#: with one never keep it waiting for ever.
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One sub-stage handed to an owned engine.

    Args:
        id: unique among all work this engine has not finished.
        request_id: the request it belongs to.
        kind: one of the engine's ``profile.kinds``.
        payload: the dataclass of that kind, such as ``TextBatch``.
        namespace: tenant; an engine never lets cached results cross it.
        handle: engine-owned state to resume from, if any.
        size: how many items this is, for batch limits.
        stream: whether ``partial`` outputs are wanted.
        depth: longest remaining path to the request's end, in primitives (Teola Alg. 2).
        arrived_at: when the request arrived, on the scheduler's clock, in seconds.
        deadline: when it must have ended, on the same clock, if ever.
        is_retried: whether it is given to the engine again after a passing error, so that the
            engine should make no further attempts of its own.
        provisional: whether ``progress`` outputs with a ``Provisional`` are wanted.
        trace: headers by which a call of a server joins the request's trace (W3C Trace Context).
    """

    id: WorkId
    request_id: str
    kind: PrimitiveKind
    payload: Any
    namespace: str = ""
    handle: Handle | None = None
    size: int = 1
    stream: bool = False
    depth: int = 1
    arrived_at: float = 0.0
    deadline: float | None = None
    is_retried: bool = False
    provisional: bool = False
    trace: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Provisional:
    """The result that work would have if it ended now (HedraRAG section 4.3).

    Args:
        value: as the final value: ``tuple[ScoredDocument, ...]``, best first.
        done: share of the work that is done, 0 to 1.
        unchanged: share of the work since which the documents and their order are as now.
        left_s: seconds until the final value, as the engine expects.
    """

    value: Any
    done: float
    unchanged: float
    left_s: float


@dataclass(frozen=True, slots=True)
class EngineOutput:
    """A report on one sub-stage.

    ``final`` and ``error`` end the work; after them the engine has forgotten its id. A ``partial``
    carries an increment (a text delta), ``progress`` a new handle or a ``Provisional``.
    """

    id: WorkId
    kind: OutputKind
    value: Any = None
    error: BaseException | None = None
    handle: Handle | None = None


@dataclass(frozen=True, slots=True)
class StepBudget:
    """The bounds of one step: no new piece after ``time_s``; ``threads`` threads for computing."""

    time_s: float | None = None
    threads: int = 1


@runtime_checkable
class Engine(Protocol):
    """An executor of primitives, in steps.

    All methods but ``interrupt`` and ``hint`` run on one worker thread.
    """

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

    def hint(self, documents: Sequence[str], namespace: str = "") -> None:
        """Learn texts of documents likely to stand in a prompt soon; may be ignored.

        Called from any thread, at any time, also after ``close``, where the profile says ``HINT``.
        It returns at once and never counts as work.

        Args:
            documents: each in every form in which it may stand in a prompt, the likeliest first.
            namespace: tenant; what is found under it is never used for another.
        """
        ...

    def interrupt(self) -> None:
        """Make a waiting step return soon. Called from other threads."""
        ...

    def close(self) -> None:
        """Free everything; called once, after the last step."""
        ...


@runtime_checkable
class CountingEngine(Protocol):
    """An engine with counters of its own, for ``Accelerator.metrics``."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Return what was counted so far by name, on the worker's thread; cheap.

        Counts rise; those whose names end in ``_bytes`` are what is held now, and may fall.
        """
        ...


@runtime_checkable
class ForgettingEngine(Protocol):
    """An engine whose results for documents' texts outlive a request."""

    def forget(self, documents: Sequence[str], namespace: str = "") -> None:
        """Remove what is kept of texts of a namespace, soon; from any thread, also after close.

        Work under way that holds such a text ends as it began.
        """
        ...


@runtime_checkable
class AdmittingEngine(Protocol):
    """An engine that tells beforehand whether it would serve one more request in time."""

    def retry_after_s(self, request: str, live: Set[str]) -> float:
        """Return 0 if the work of a new request would end in time, else when it should ask again.

        In seconds; a request that is given more than 0 is refused. On the scheduler's thread: it
        must return soon.

        Args:
            request: that asks to be admitted, as ``EngineRequest.request_id``.
            live: the admitted requests; an opened program is among them before its first call.
        """
        ...


@runtime_checkable
class CompositeEngine(Protocol):
    """An engine made of several parts, for ``Accelerator.explain``."""

    def describe_parts(self) -> Sequence[str]:
        """Return a line for each part; from any thread."""
        ...


class EngineBase:
    """A base of owned engines whose optional methods do nothing."""

    def cancel(self, ids: Sequence[WorkId]) -> None:
        """Forget nothing: a non-stepped engine holds no work between steps."""

    def release(self, handles: Sequence[Handle]) -> None:
        """Free nothing: this engine hands out no handles."""

    def hint(self, documents: Sequence[str], namespace: str = "") -> None:
        """Ignore the hint."""

    def interrupt(self) -> None:
        """Do nothing: steps of this engine do not wait."""

    def close(self) -> None:
        """Free nothing."""
