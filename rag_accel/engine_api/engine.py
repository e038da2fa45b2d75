"""Define what an owned engine implements: it is stepped, and told what to forget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from rag_accel.engine_api.profile import EngineProfile
from rag_accel.engine_api.work import EngineOutput, EngineRequest, Handle, StepBudget, WorkId


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
