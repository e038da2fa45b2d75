"""Bases of the engines of this package: the profile, refusals, and answers of other threads."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Sequence
from typing import Generic, TypeVar

from rag_accel.engine_api import (
    EngineBase,
    EngineOutput,
    EngineProfile,
    EngineRequest,
    StepBudget,
    WorkId,
)
from rag_accel.engines.outbox import Outbox
from rag_accel.errors import ClosedError, EngineError, ForkedError

JobT = TypeVar("JobT")
ReportT = TypeVar("ReportT")
PayloadT = TypeVar("PayloadT")


class OwnEngine(EngineBase):
    """A base of engines with a constant profile, and with refusals of what is not for them.

    Args:
        profile: of the engine.
        where: names the engine in its errors.
    """

    def __init__(self, profile: EngineProfile, where: str = "") -> None:
        self._profile = profile
        self._where = where
        self._closed = False

    @property
    def profile(self) -> EngineProfile:
        return self._profile

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError("the engine is closed", where=self._where)

    def _checked_payload(
        self, request: EngineRequest, valid: type[PayloadT], unfinished: Container[WorkId] = ()
    ) -> PayloadT:
        """Return the payload of a request; EngineError if its kind, class or id is not valid."""
        if request.kind not in self._profile.kinds:
            kinds = ", ".join(sorted(self._profile.kinds))
            raise self._refusal("kind not executed here", request.kind, kinds)
        if not isinstance(request.payload, valid):
            found = type(request.payload).__name__
            raise self._refusal("payload of a wrong type", found, valid.__name__)
        if request.id in unfinished:
            raise self._refusal("id of unfinished work used again", request.id, "a fresh id")
        return request.payload

    def _refusal(self, what: str, found: object, valid: str) -> EngineError:
        return EngineError(what, where=self._where, found=found, valid=valid)


class OutboxEngine(OwnEngine, Generic[JobT, ReportT]):
    """A base of engines whose answers other threads put into an outbox; see ``OwnEngine``.

    A forked child has none of these threads: it may neither use the engine nor end its parts.
    """

    def __init__(self, profile: EngineProfile, where: str) -> None:
        super().__init__(profile, where)
        self._jobs: dict[WorkId, JobT] = {}
        self._rejected: list[EngineOutput] = []
        self._outbox: Outbox[ReportT] = Outbox()
        self._pid = os.getpid()

    @property
    def _is_forked(self) -> bool:
        return os.getpid() != self._pid

    def _require_usable(self) -> None:
        if self._is_forked:
            raise ForkedError(
                "an engine made before fork() was used in the child",
                where=self._where or type(self).__name__,
                hint="make it, and its accelerator, after the fork",
            )
        self._require_open()

    def submit(self, work: Sequence[EngineRequest]) -> None:
        self._require_usable()
        accepted: list[JobT] = []
        for request in work:
            try:
                job = self._job(request)
            except Exception as error:  # one bad item must not reject its neighbours
                self._rejected.append(EngineOutput(request.id, "error", error=error))
            else:
                self._jobs[request.id] = job
                accepted.append(job)
        if accepted:
            self._start(accepted)

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        """Wait up to ``budget.time_s`` for reports, or until interrupted."""
        outputs, self._rejected = self._rejected, []
        if self._jobs:
            for report in self._outbox.take(0.0 if outputs else self._wait_s(budget.time_s)):
                outputs.extend(self._outputs_of(report))
            outputs += self._rejected  # work that a report has ended
            self._rejected = []
        return outputs

    def cancel(self, ids: Sequence[WorkId]) -> None:
        gone = set(ids)
        self._rejected = [output for output in self._rejected if output.id not in gone]
        jobs = [self._jobs.pop(id) for id in gone if id in self._jobs]
        if jobs:
            self._abort(jobs)

    def interrupt(self) -> None:
        """Make a waiting step return at once."""
        self._outbox.interrupt()

    def _job(self, request: EngineRequest) -> JobT:
        """Return the job of a request; whatever it raises refuses this request alone."""
        raise NotImplementedError

    def _start(self, jobs: Sequence[JobT]) -> None:
        """Start accepted jobs."""
        raise NotImplementedError

    def _abort(self, jobs: Sequence[JobT]) -> None:
        """Stop jobs that are forgotten."""
        raise NotImplementedError

    def _outputs_of(self, report: ReportT) -> Iterable[EngineOutput]:
        """Return the outputs of a report; none for work that was cancelled meanwhile."""
        raise NotImplementedError

    def _wait_s(self, most: float | None) -> float | None:
        """Return the seconds that a step waits, of those that it may."""
        return most
