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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial

from rag_accel.clock import Clock, MonotonicClock
from rag_accel.engine_api import (
    CountingEngine,
    Engine,
    EngineOutput,
    ForgettingEngine,
    Handle,
)
from rag_accel.engines.replicas.hosted_steps import HostedSteps
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


class EngineHost:
    """One owned engine in a process of its own.

    Args:
        spec: of the engine.
        threads: granted to each of its steps.
        clock: measures deadlines and steps.
    """

    def __init__(self, spec: EngineSpec, threads: int, clock: Clock | None = None) -> None:
        self._spec = spec
        self._threads = threads
        self._clock = clock or MonotonicClock()
        self._incarnation = uuid.uuid4().hex
        lock = threading.Lock()
        #: the engine's thread waits for the one, whoever polls for the other: a needless wake costs
        self._wake = threading.Condition(lock)
        self._told = threading.Condition(lock)
        self._commands: list[Callable[[], object]] = []
        self._reports: deque[bytes] = deque()
        self._first = 0
        self._counts: Mapping[str, int] = {}
        self._step_began: float | None = None
        self._closing = False
        self._started: Future[HostInfo] = Future()
        self._engine: Engine | None = None
        self._steps: HostedSteps | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> HostInfo:
        """Make the engine, once, and return the facts about this process.

        Raises:
            Exception: whatever the factory raises.
        """
        with self._wake:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._main, name="rag-accel-hosted", daemon=True
                )
                self._thread.start()
        return self._started.result()

    def submit(self, work: Sequence[HostedWork]) -> None:
        """Take work; a process that was not started yet is not the one that it was sent to."""
        if self._thread is not None:
            self._post(lambda steps: steps.take(work))

    def exchange(self, work: Sequence[HostedWork], acknowledged: int, wait_s: float) -> HostReports:
        """Take work, then ``poll``: one call for both.

        Raises:
            EngineLostError: the engine's thread has ended.
        """
        self.submit(work)
        return self.poll(acknowledged, wait_s)

    def cancel(self, numbers: Sequence[int]) -> None:
        """Forget work by its numbers."""
        self._post(lambda steps: steps.cancel([work_id(number) for number in numbers]))

    def release(self, handles: Sequence[Handle]) -> None:
        """Free state of the engine."""
        self._post(lambda _: self._made.release(handles))

    def forget(self, documents: Sequence[str], namespace: str) -> None:
        """Remove what is kept of texts of a namespace, where the engine keeps any."""
        self._started.result()
        if isinstance(self._engine, ForgettingEngine):
            self._engine.forget(documents, namespace)

    def hint(self, documents: Sequence[str], namespace: str) -> None:
        """Tell the engine of texts that are likely to come."""
        self._started.result()
        self._made.hint(documents, namespace)

    def poll(self, acknowledged: int, wait_s: float) -> HostReports:
        """Return the reports from number ``acknowledged`` on, waiting for a first one.

        Those before it are forgotten; one that is not acknowledged is returned again.

        Raises:
            EngineLostError: the engine's thread has ended.
        """
        with self._wake:
            if self._thread is None:  # a new process, which whoever polls does not expect
                return HostReports(self._incarnation, 0, ())
            while self._reports and self._first < acknowledged:
                self._reports.popleft()
                self._first += 1
            self._told.wait_for(lambda: self._reports or not self._is_alive, wait_s)
            if not self._is_alive and not self._reports:
                raise EngineLostError("the thread of the engine has ended", where=WHERE)
            began = self._step_began
            return HostReports(
                self._incarnation,
                self._first,
                tuple(self._reports),
                0.0 if began is None else self._clock.now() - began,
                self._counts,
            )

    def close(self) -> None:
        """Drop all work and free the engine; returns when it is freed."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        self._interrupt()
        if self._thread is not None:
            self._thread.join()

    @property
    def _made(self) -> Engine:
        assert self._engine is not None, "the engine is made before it is used"
        return self._engine

    @property
    def _is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _post(self, command: Callable[[HostedSteps], object]) -> None:
        """Let the engine's thread run a command before its next step."""
        with self._wake:
            self._commands.append(partial(self._run, command))
            self._wake.notify_all()
        self._interrupt()

    def _run(self, command: Callable[[HostedSteps], object]) -> None:
        assert self._steps is not None, "commands run after the engine was made"
        command(self._steps)

    def _interrupt(self) -> None:
        engine = self._engine
        if engine is not None and engine.profile.interruptible:
            engine.interrupt()

    def _main(self) -> None:
        try:
            engine = self._engine = self._spec.make()
            self._steps = steps = HostedSteps(engine, self._threads, self._clock)
            info = self._info(engine)
        except BaseException as error:
            self._started.set_exception(error)
            return
        self._started.set_result(info)
        try:
            while self._next(steps):
                self._step(steps)
        finally:
            engine.close()
            with self._told:
                self._told.notify_all()

    def _next(self, steps: HostedSteps) -> bool:
        """Run the commands, waiting for one where there is no work; False at the end."""
        with self._wake:
            self._wake.wait_for(lambda: self._commands or self._closing or steps.has_work)
            commands, self._commands = self._commands, []
            if self._closing:
                return False
        for command in commands:
            command()
        return True

    def _step(self, steps: HostedSteps) -> None:
        if not steps.has_work:
            return
        self._step_began = self._clock.now()
        outputs = steps.step()
        self._step_began = None
        if isinstance(self._engine, CountingEngine):
            self._counts = dict(self._engine.counts)
        self._report(outputs)

    def _report(self, outputs: Sequence[EngineOutput]) -> None:
        if not outputs:
            return
        body = pack_outputs(outputs)
        with self._told:
            self._reports.append(body)
            self._told.notify_all()

    def _info(self, engine: Engine) -> HostInfo:
        return HostInfo(
            engine.profile, self._incarnation, platform.node(), os.getpid(), versions_here()
        )


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
