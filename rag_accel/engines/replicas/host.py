"""The far side: an engine on a thread of its own, and the calls that bring it work.

Several methods of ``EngineHost`` run at a time: while ``poll`` waits for outputs and the engine
computes, ``submit`` brings more.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import threading
import uuid
from collections import deque
from collections.abc import Sequence

from rag_accel.clock import Clock, MonotonicClock
from rag_accel.engine_api import ForgettingEngine, Handle, WorkId
from rag_accel.engines.replicas.engine_thread import EngineSteps, EngineThread, StepReport
from rag_accel.engines.replicas.messages import (
    WHERE,
    HostedWork,
    HostInfo,
    HostReports,
    pack_outputs,
    work_id,
)
from rag_accel.engines.replicas.spec import EngineSpec
from rag_accel.errors import EngineLostError

_EARLY = 10_000


class EngineHost:
    """One owned engine in a process of its own.

    Args:
        spec: of the engine.
        threads: granted to each of its steps.
        clock: measures deadlines and steps.
    """

    def __init__(self, spec: EngineSpec, threads: int, clock: Clock | None = None) -> None:
        self._clock = clock or MonotonicClock()
        self._incarnation = uuid.uuid4().hex
        self._told = threading.Condition()
        self._reports: deque[bytes] = deque()
        self._first = 0
        self._is_over = False
        #: cancelled before they came: calls of a process may overtake each other
        self._gone_early: dict[WorkId, None] = {}
        self._thread = EngineThread(
            "rag-accel-hosted", spec.make, self._report, self._clock, threads
        )

    def start(self) -> HostInfo:
        """Make the engine, once, and return the facts about this process.

        Raises:
            Exception: whatever the factory raises.
        """
        self._thread.start()
        profile = self._thread.made.result().profile
        return HostInfo(profile, self._incarnation, platform.node(), os.getpid(), versions_here())

    def submit(self, work: Sequence[HostedWork]) -> None:
        """Take work; a process that was not started yet is not the one that it was sent to."""
        if self._thread.is_started:
            self._thread.order(lambda steps: self._take(steps, work))

    def exchange(self, work: Sequence[HostedWork], acknowledged: int, wait_s: float) -> HostReports:
        """Take work, then ``poll``: one call for both.

        Raises:
            EngineLostError: the engine's thread has ended.
        """
        self.submit(work)
        return self.poll(acknowledged, wait_s)

    def cancel(self, numbers: Sequence[int]) -> None:
        """Forget work by its numbers, also such as has not come yet."""
        self._thread.order(lambda steps: self._cancel(steps, list(map(work_id, numbers))))

    def release(self, handles: Sequence[Handle]) -> None:
        """Free state of the engine."""
        self._thread.order(lambda steps: steps.engine.release(handles))

    def forget(self, documents: Sequence[str], namespace: str) -> None:
        """Remove what is kept of texts of a namespace, where the engine keeps any."""
        engine = self._thread.made.result()
        if isinstance(engine, ForgettingEngine):
            engine.forget(documents, namespace)

    def hint(self, documents: Sequence[str], namespace: str) -> None:
        """Tell the engine of texts that are likely to come."""
        self._thread.made.result().hint(documents, namespace)

    def poll(self, acknowledged: int, wait_s: float) -> HostReports:
        """Return the reports from number ``acknowledged`` on, waiting for a first one.

        Those before it are forgotten; one that is not acknowledged is returned again.

        Raises:
            EngineLostError: the engine's thread has ended.
        """
        thread = self._thread
        with self._told:
            if not thread.is_started:  # a new process, which whoever polls does not expect
                return HostReports(self._incarnation, 0, ())
            while self._reports and self._first < acknowledged:
                self._reports.popleft()
                self._first += 1
            self._told.wait_for(lambda: self._reports or self._is_over, wait_s)
            if self._is_over and not self._reports:
                raise EngineLostError("the thread of the engine has ended", where=WHERE)
            return HostReports(
                self._incarnation,
                self._first,
                tuple(self._reports),
                thread.step_s or 0.0,
                thread.counts,
            )

    def close(self) -> None:
        """Drop all work and free the engine; returns when it is freed."""
        self._thread.close()
        self._thread.join()

    def _take(self, steps: EngineSteps, work: Sequence[HostedWork]) -> None:
        """Queue work; what cannot be read here ends in an error."""
        for item in work:
            id = work_id(item.number)
            if id in self._gone_early:
                del self._gone_early[id]
                continue
            try:
                steps.take([item.request(self._clock.now())])
            except Exception as error:
                steps.refuse(id, error)

    def _cancel(self, steps: EngineSteps, ids: Sequence[WorkId]) -> None:
        self._gone_early.update(dict.fromkeys(steps.cancel(ids)))
        while len(self._gone_early) > _EARLY:
            del self._gone_early[next(iter(self._gone_early))]

    def _report(self, report: StepReport) -> None:
        body = [pack_outputs(report.outputs)] if report.outputs else []
        with self._told:
            self._reports.extend(body)
            self._is_over = report.is_over
            self._told.notify_all()


def versions_here() -> dict[str, str]:
    """Return the versions of this process that must equal those of the others."""
    major, minor, _ = platform.python_version_tuple()
    return {
        "Python": f"{major}.{minor}",
        "rag-accel": importlib.metadata.version("rag-accel"),
        "ray": _version("ray"),
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"
