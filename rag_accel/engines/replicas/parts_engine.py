"""The base of engines made of parts: their health, end, counts, handles and jobs."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from rag_accel.engine_api import EngineOutput, EngineProfile, EngineRequest, Handle, Health
from rag_accel.engine_api.health import HealthState, best_state
from rag_accel.engines.bases import OutboxEngine, ReportT

PartT = TypeVar("PartT", bound=Hashable)


@dataclass(frozen=True, slots=True)
class PinnedHandle(Generic[PartT]):
    """A handle of a part's engine, with the one part that knows it.

    Args:
        part: that has the state.
        incarnation: the process of the part that has it, if the part is one.
        handle: what its engine calls the state.
    """

    part: PartT
    incarnation: str
    handle: Handle


@dataclass(slots=True, eq=False)
class PartJob(Generic[PartT]):
    """A request while it is in flight. Equal only to itself.

    Args:
        request: as it was submitted.
        pin: the handle of the part that has its state, for work that resumes.
        sent_at: when the part got it that has it now.
        is_streamed: whether some of it has been passed on: it is never repeated then.
    """

    request: EngineRequest
    pin: PinnedHandle[PartT] | None = None
    sent_at: float = 0.0
    is_streamed: bool = False


PartJobT = TypeVar("PartJobT", bound="PartJob[Any]")


class PartsEngine(OutboxEngine[PartJobT, ReportT], Generic[PartT, PartJobT, ReportT]):
    """A base of engines made of parts; see ``OutboxEngine``."""

    def __init__(self, profile: EngineProfile, where: str) -> None:
        super().__init__(profile, where)
        self._handles: dict[Handle, PinnedHandle[PartT]] = {}
        self._handle_numbers = itertools.count(1)

    def release(self, handles: Sequence[Handle]) -> None:
        for handle in handles:
            pin = self._handles.pop(handle, None)
            if pin is not None:
                self._free(pin)

    def close(self) -> None:
        """Forget all work and end the parts, which in a forked child are the parent's."""
        if not (self._closed or self._is_forked):
            self._closed = True
            self._end_parts()

    def _end_parts(self) -> None:
        """Forget all work and end the parts."""
        raise NotImplementedError

    def _health(
        self,
        parts: Iterable[Health],
        why: str = "",
        of_all: Callable[[Iterable[Health]], HealthState] = best_state,
    ) -> Health:
        """Return the health of all: by default that of the best part, since any does the work."""
        parts = tuple(parts)
        state = "lost" if self._closed else of_all(parts)
        if state != "ready":
            first = next((part.why for part in parts if part.state == state), "")
            why = "it is closed" if self._closed else why or first
        return Health(self._where, state, "" if state == "ready" else why, parts)

    def _pin_of(self, request: EngineRequest) -> PinnedHandle[PartT] | None:
        """Return the state that a request resumes from, if any; EngineError if it is unknown."""
        if request.handle is None:
            return None
        pin = self._handles.get(request.handle)
        if pin is None:
            raise self._refusal("unknown handle", request.handle, "one not yet released")
        return pin

    def _pinned(self, output: EngineOutput, part: PartT, incarnation: str = "") -> EngineOutput:
        """Return an output of a part whose handle tells the part that has the state."""
        if output.handle is None:
            return output
        handle = Handle(f"pinned-{next(self._handle_numbers)}")
        self._handles[handle] = PinnedHandle(part, incarnation, output.handle)
        return replace(output, handle=handle)

    def _fail(self, jobs: Sequence[PartJobT], error: BaseException) -> None:
        """Let jobs end in this step or the next, each in an error of its own."""
        for job in jobs:
            if self._jobs.get(job.request.id) is job:
                del self._jobs[job.request.id]
                own = error if len(jobs) == 1 else copy(error)
                self._rejected.append(EngineOutput(job.request.id, "error", error=own))
        self._outbox.interrupt()

    def _free(self, pin: PinnedHandle[PartT]) -> None:
        """Let a part free a state."""
        raise NotImplementedError


def added_up(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    """Return the counts of parts, added up by name."""
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return total
