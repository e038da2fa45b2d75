"""One process from the side of the engine: work sent to it, its outputs, and its restarts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from rag_accel.clock import Clock
from rag_accel.engine_api import EngineOutput, Handle, Health
from rag_accel.engines.replicas.host import (
    HostedWork,
    HostInfo,
    HostReports,
    unpack_outputs,
    versions_here,
)
from rag_accel.engines.replicas.parts_engine import PartJob
from rag_accel.engines.replicas.processes import (
    HostCall,
    HostGoneError,
    HostProcess,
    ReplicaOptions,
    WorkChannel,
    failure_of,
)
from rag_accel.errors import ConfigError, EngineError, EngineLostError

ReplicaState = Literal["starting", "ready", "draining", "lost", "closed"]
_Texts: TypeAlias = tuple[tuple[str, ...], str]

#: Seconds between questions whether a process runs again.
_AGAIN_S = 0.1
#: Seconds of health after which the restarts of a process are forgotten.
_FORGET_S = 3600.0


@dataclass(slots=True, eq=False)
class HostedJob(PartJob["Replica"]):
    """A request while it is in flight at replicas. Equal only to itself.

    Args:
        work: as it was sent last.
        call: that took it to the process.
        resends: how often it was sent again.
        is_suspect: whether a process was lost with it: it is sent to one without other work.
    """

    work: HostedWork = field(kw_only=True)
    call: HostCall | None = None
    resends: int = 0
    is_suspect: bool = False


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """News of a replica.

    Args:
        replica: that reports.
        incarnation: the process that had the work.
        outputs: of work in flight, with their jobs.
        lost: jobs that no process works at any more.
        error: why they were lost.
    """

    replica: Replica
    incarnation: str = ""
    outputs: tuple[tuple[HostedJob, EngineOutput], ...] = ()
    lost: tuple[HostedJob, ...] = ()
    error: EngineError | None = None


class Replica:
    """A process and the work in flight there; a thread of its own collects the outputs.

    When the process is gone, all its work is reported as lost and the thread waits for the one that
    is started in its place. After an hour of service that is a new one, whose restarts count from
    none.

    Args:
        name: in errors and reports.
        host: begins to start the process that hosts the engine.
        options: the bounds.
        clock: that of the scheduler.
        tell: takes reports, on the thread of this replica.
        idle: called now and then while nothing comes, on the thread of this replica.
    """

    def __init__(
        self,
        name: str,
        host: Callable[[], HostProcess],
        options: ReplicaOptions,
        clock: Clock,
        tell: Callable[[ReplicaReport], object],
        idle: Callable[[], object] | None = None,
    ) -> None:
        self.name = name
        #: handles that are held of it; counted by its engine
        self.pins = 0
        self.counts: dict[str, int] = {}
        self.info: HostInfo | None = None
        self.failure: Exception | None = None
        self._host = host
        self._process = host()
        self._served_since = 0.0
        #: whether it may still compute what was cancelled
        self.is_in_step = False
        self._options = options
        self._clock = clock
        self._tell = tell
        self._idle = idle
        #: guards what follows
        self._lock = threading.Lock()
        self._state: ReplicaState = "starting"
        self._why = "its process is starting"
        self._jobs: dict[int, HostedJob] = {}
        #: texts of a namespace that the present process has not yet forgotten
        self._owed: list[_Texts] = []
        self._idle_since = 0.0
        self._channel = WorkChannel(self._process, options.lost_after_s)
        self._closing = threading.Event()
        self._settled = threading.Event()
        self._close_call: HostCall | None = None
        self._thread = threading.Thread(target=self._main, name=f"rag-accel-{name}", daemon=True)
        self._thread.start()

    @property
    def state(self) -> ReplicaState:
        """Return its state now; it may change at any time."""
        return self._state

    @property
    def items(self) -> int:
        with self._lock:
            return sum(job.work.size for job in self._jobs.values())

    @property
    def has_suspects(self) -> bool:
        """Tell whether it has work with which a process was lost, and takes no other."""
        with self._lock:
            return any(job.is_suspect for job in self._jobs.values())

    def idle_s(self, now: float) -> float:
        """Return the seconds without work; 0 where there is some."""
        with self._lock:
            idle = self._state == "ready" and not self._jobs
            return now - self._idle_since if idle else 0.0

    def health(self) -> Health:
        """Return whether it takes work."""
        with self._lock:
            state, why = self._state, self._why
        if state == "ready":
            return Health(self.name)
        return Health(self.name, "lost" if state in ("lost", "closed") else "paused", why)

    def wait(self) -> None:
        """Wait until it is ready, or lost; what made it so is then ``failure``."""
        self._settled.wait()

    def send(self, jobs: Sequence[HostedJob]) -> bool:
        """Send work; False if it takes none now."""
        now = self._clock.now()
        with self._lock:
            if self._state != "ready":
                return False
            for job in jobs:
                job.sent_at = now
                self._jobs[job.work.number] = job
        # A process that goes meanwhile is noticed by the thread, which reports these as lost.
        call = self._channel.send([job.work for job in jobs])
        for job in jobs:
            job.call = call
        return True

    def cancel(self, jobs: Sequence[HostedJob]) -> None:
        """Forget work that is in flight here."""
        with self._lock:
            numbers = [job.work.number for job in jobs]
            gone = [number for number in numbers if self._jobs.pop(number, None) is not None]
            self._note_idle()
        if gone:
            self.is_in_step = True  # until a report says that it is not
            self._channel.begin("cancel", gone)

    def release(self, incarnation: str, handles: Sequence[Handle]) -> None:
        """Free state of a process, if it is still the one."""
        if self.info is not None and self.info.incarnation == incarnation:
            self._channel.begin("release", list(handles))

    def hint(self, documents: Sequence[str], namespace: str) -> None:
        """Pass a hint on, where the process runs; from any thread."""
        if self._state == "ready":
            self._channel.begin("hint", tuple(documents), namespace)

    def forget(self, documents: Sequence[str], namespace: str) -> None:
        """Have texts forgotten now, or by the next process before it takes work.

        Raises:
            Exception: whatever the engine raises.
        """
        texts = tuple(documents), namespace
        with self._lock:
            if self._state in ("lost", "closed"):
                return
            self._owed.append(texts)
            is_ready = self._state in ("ready", "draining")
        if is_ready:
            self._forget_owed(texts)

    def retire(self) -> bool:
        """Take no more work and end soon; False if it has some, or is not ready."""
        with self._lock:
            if self._state != "ready" or self._jobs:
                return False
            self._state, self._why = "draining", "it is being ended"
        return True

    def begin_close(self) -> None:
        """Have the process free its engine."""
        with self._lock:
            if self._state != "lost":
                self._state, self._why = "closed", "the engine is closed"
        lost = tuple(self._take_all())
        if lost:
            self._tell(
                ReplicaReport(self, "", (), lost, lost_error(self.name, "the engine was closed"))
            )
        if not self._closing.is_set():
            self._closing.set()
            self._channel.end()
            self._close_call = self._channel.begin("close") if self.info is not None else None

    def end_close(self) -> None:
        """Wait until the engine is freed, end the process and the thread."""
        self._end_process()
        self._thread.join()

    def _end_process(self) -> None:
        try:
            if self._close_call is not None:
                self._close_call.result(self._options.close_timeout_s)
        except Exception:  # whatever has become of it: its process is ended next
            pass
        finally:
            self._close_call = None
            self._process.end(restart=False)

    def _main(self) -> None:
        try:
            while not self._closing.is_set():
                info = self._begin()
                if info is None:
                    return
                self._serve(info)
        except Exception as error:
            self._end(error)
        finally:
            self._settled.set()

    def _begin(self) -> HostInfo | None:
        """Wait until the process has made its engine; None if this is closed meanwhile.

        Raises:
            Exception: it cannot, or not in time.
        """
        deadline = self._clock.now() + self._options.start_timeout_s
        while not self._closing.is_set():
            try:
                left_s = max(0.0, deadline - self._clock.now())
                info: HostInfo = self._process.call("start").result(left_s)
            except TimeoutError as error:
                options = self._options
                needs = f"it waits for {options.needs}, or " if options.needs else ""
                raise EngineError(
                    "a process has not made its engine in time",
                    where=self.name,
                    found=f"{needs}the engine takes long to make",
                    valid=f"within start_timeout_s={options.start_timeout_s:g} seconds",
                    hint="give it more time; on a cluster, see what is free",
                ) from error
            except HostGoneError as error:
                if error.is_final or self._clock.now() >= deadline:
                    raise EngineLostError(
                        "the process of an engine does not start",
                        where=self.name,
                        found=str(error),
                        hint="it needs rag-accel and what the engine imports, on every node; one "
                        "that died is started again at most max_restarts times",
                    ) from error
                self._closing.wait(_AGAIN_S)
            else:
                check_versions(self.name, info)
                self._open(info)
                return info
        return None

    def _open(self, info: HostInfo) -> None:
        """Let work come, after what the last process was to forget is forgotten by this one."""
        while True:
            with self._lock:
                owed = list(self._owed)
                if not owed:
                    self.info = info
                    if self._state == "starting":
                        self._state, self._why = "ready", ""
                        self._served_since = self._clock.now()
                        self._idle_since = self._clock.now()
                    break
            for texts in owed:
                if not self._forget_owed(texts):
                    return  # the process is gone again, as the next poll will show
        self._settled.set()
        self._tell(ReplicaReport(self))

    def _forget_owed(self, texts: _Texts) -> bool:
        """Have the present process forget texts; False if it is gone."""
        try:
            call = self._process.call("forget", *texts)
            call.result(self._options.lost_after_s)
        except (HostGoneError, TimeoutError):
            return False
        except BaseException:
            self._drop_owed(texts)
            raise
        self._drop_owed(texts)
        return True

    def _drop_owed(self, texts: _Texts) -> None:
        with self._lock:
            self._owed = [owed for owed in self._owed if owed is not texts]

    def _serve(self, info: HostInfo) -> None:
        """Collect outputs until the process is gone, or this is closed."""
        self._channel.restart()
        while not self._closing.is_set():
            try:
                reports = self._channel.collect(self._is_idle)
            except HostGoneError as error:
                if error.is_final and not self._may_host_again:
                    raise lost_error(self.name, str(error)) from error
                return self._restart(info, str(error))
            except (TimeoutError, EngineError) as error:
                if not self._closing.is_set():
                    self._process.end(restart=True)
                return self._restart(info, f"it does not answer: {error}")
            if reports.incarnation != info.incarnation:
                return self._restart(info, "its process was replaced by another one")
            self._take(info, reports)
            hangs = self._watch(info, reports)
            if hangs or reports.step_s > self._options.work_timeout_s + self._options.lost_after_s:
                self._process.end(restart=True)
                return self._restart(info, f"a step has lasted {reports.step_s:.0f} s")
            if self._idle is not None and not reports.reports:
                self._idle()
            if self._state == "draining":
                self.begin_close()
                self._end_process()
        return None

    def _is_idle(self) -> bool:
        with self._lock:
            return not self._jobs

    def _take(self, info: HostInfo, reports: HostReports) -> None:
        self.counts = dict(reports.counts)
        outputs: list[tuple[HostedJob, EngineOutput]] = []
        lost: list[HostedJob] = []
        error: EngineError | None = None
        for body in reports.reports:
            try:
                told = unpack_outputs(body)
            except EngineError as unreadable:  # which work it was about is not known
                error, lost = unreadable, self._take_all()
                continue
            outputs += self._known(told)
        if outputs or lost:
            self._tell(ReplicaReport(self, info.incarnation, tuple(outputs), tuple(lost), error))

    def _known(self, told: Sequence[EngineOutput]) -> list[tuple[HostedJob, EngineOutput]]:
        known: list[tuple[HostedJob, EngineOutput]] = []
        unheld: list[Handle] = []
        with self._lock:
            for output in told:
                job = self._jobs.get(int(output.id))
                if job is None:  # cancelled, or sent to another one
                    unheld += [] if output.handle is None else [output.handle]
                    continue
                if output.kind == "partial":
                    job.is_streamed = True
                elif output.kind != "progress":
                    del self._jobs[int(output.id)]
                known.append((job, output))
            self._note_idle()
        if unheld:
            self._channel.begin("release", unheld)
        return known

    def _watch(self, info: HostInfo, reports: HostReports) -> bool:
        """End work that is late, and report such as never reached the process.

        True where a step hangs: the process is to be ended, and which work is at fault is not known
        unless there is only one.
        """
        is_idle = not reports.reports
        if is_idle and self.is_in_step and not reports.step_s:
            self.is_in_step = False
            self._tell(ReplicaReport(self))  # suspects may wait for this
        now = self._clock.now()
        with self._lock:
            jobs = list(self._jobs.values())
        late = [job for job in jobs if now - job.sent_at > self._options.work_timeout_s]
        hangs = bool(late) and reports.step_s > self._options.work_timeout_s / 2
        if hangs and len(jobs) > 1:
            return True
        if late:
            self.cancel(late)
            ends = tuple((job, self._overdue(job)) for job in late)
            self._tell(ReplicaReport(self, info.incarnation, ends))
        calls = {id(job.call): job.call for job in jobs if job.call is not None} if is_idle else {}
        for call in calls.values():
            failure = failure_of(call)
            if failure is not None:
                self._report_unsent(info, [job for job in jobs if job.call is call], failure)
        return hangs

    def _overdue(self, job: HostedJob) -> EngineOutput:
        error = EngineError(
            "a process has not ended a piece of work in time",
            where=self.name,
            valid=f"within work_timeout_s={self._options.work_timeout_s:g} seconds",
            hint="give it more time, or the engine more replicas",
        )
        return EngineOutput(job.request.id, "error", error=error)

    def _report_unsent(self, info: HostInfo, jobs: list[HostedJob], failure: Exception) -> None:
        with self._lock:
            numbers = [job.work.number for job in jobs]
            lost = [self._jobs.pop(number, None) for number in numbers]
            self._note_idle()
        unsent = tuple(job for job in lost if job is not None)
        if unsent:
            self._tell(
                ReplicaReport(
                    self, info.incarnation, (), unsent, lost_error(self.name, str(failure))
                )
            )

    def _restart(self, info: HostInfo, why: str) -> None:
        """Report all work as lost, and wait for the next process."""
        if self._closing.is_set():
            return
        with self._lock:
            if self._state == "closed":
                return
            if self._state == "draining":
                self._closing.set()
                self._state = "closed"
                return
            self._state, self._why = "starting", f"its process starts again: {why}"
            self._host_again()
        self.info, self.is_in_step = None, False
        lost = tuple(self._take_all())
        self._tell(ReplicaReport(self, info.incarnation, (), lost, lost_error(self.name, why)))

    @property
    def _may_host_again(self) -> bool:
        return self._clock.now() - self._served_since >= _FORGET_S

    def _host_again(self) -> None:
        """Host another process in the place of one whose restarts are forgotten; under the lock."""
        if self._may_host_again:
            self._process.end(restart=False)
            self._process = self._host()
            self._channel = WorkChannel(self._process, self._options.lost_after_s)

    def _end(self, error: Exception) -> None:
        """Take no work any more."""
        with self._lock:
            if self._state != "closed":
                self._state, self._why = "lost", str(error)
            self._owed.clear()
        self.failure = error
        incarnation = self.info.incarnation if self.info is not None else ""
        lost = tuple(self._take_all())
        told = error if isinstance(error, EngineError) else lost_error(self.name, str(error))
        if not self._closing.is_set():
            self._process.end(restart=False)
        self._settled.set()
        self._tell(ReplicaReport(self, incarnation, (), lost, told))

    def _take_all(self) -> list[HostedJob]:
        with self._lock:
            jobs = list(self._jobs.values())
            self._jobs.clear()
            self._note_idle()
            return jobs

    def _note_idle(self) -> None:
        if not self._jobs:
            self._idle_since = self._clock.now()


def lost_error(name: str, why: str) -> EngineLostError:
    """Return the error of work whose process is gone."""
    return EngineLostError(
        "the process of an engine was lost while it worked",
        where=name,
        found=why,
        hint="send the work again: the process is started again, at most max_restarts times",
    )


def check_versions(name: str, info: HostInfo) -> None:
    """Check that both sides run the same versions.

    Raises:
        ConfigError: they do not.
    """
    here = versions_here()
    other = {key: value for key, value in info.versions.items() if here.get(key) != value}
    if other:
        raise ConfigError(
            "a process runs another version",
            where=f"{name}, on {info.node}",
            found=", ".join(f"{key} {value}" for key, value in sorted(other.items())),
            valid=", ".join(f"{key} {here.get(key)}" for key in sorted(other)),
            hint="install the same versions wherever processes are started",
        )
