"""Any owned engine in other processes, behind the seam of engines."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from rag_accel.clock import Clock, MonotonicClock
from rag_accel.engine_api import (
    Capability,
    EngineOutput,
    EngineProfile,
    EngineRequest,
    Handle,
    Health,
    LatencyModel,
    PrimitiveKind,
    StepBudget,
)
from rag_accel.engines.replicas.host import HostedWork
from rag_accel.engines.replicas.parts_engine import (
    PartJobT,
    PartsEngine,
    PinnedHandle,
    ReportT,
    added_up,
)
from rag_accel.engines.replicas.processes import HostProcess, ReplicaOptions
from rag_accel.engines.replicas.replica import HostedJob, Replica, ReplicaReport, ReplicaState
from rag_accel.errors import ConfigError, EngineLostError


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """The work of one replica.

    Args:
        state: of the replica.
        items: in flight.
        idle_s: seconds without any.
        is_pinned: whether somebody holds state that only this replica has.
    """

    state: ReplicaState
    items: int = 0
    idle_s: float = 0.0
    is_pinned: bool = False


@dataclass(frozen=True, slots=True)
class ScalingRule:
    """The bounds of the number of replicas.

    Args:
        least: of them.
        most: of them, those that were lost for good included.
        scale_at: items in flight for each replica from which there should be one more.
        idle_s: seconds without work after which there is one too many.
    """

    least: int
    most: int
    scale_at: int
    idle_s: float

    def wants_another(self, loads: Sequence[ReplicaLoad], waiting: int = 0) -> bool:
        """Tell whether to start a replica; ``waiting`` items have none yet.

        One at a time: while one starts, nobody knows what it will take over.
        """
        alive = [load for load in loads if load.state in ("ready", "starting")]
        there = sum(load.state not in ("closed", "draining") for load in loads)
        if there >= self.most or any(load.state == "starting" for load in alive):
            return False
        if not alive:
            return False  # the last one was lost for good: the next one would be, too
        return waiting + sum(load.items for load in alive) >= self.scale_at * len(alive)

    def surplus(self, loads: Sequence[ReplicaLoad]) -> int | None:
        """Return the place of a replica that may go: idle for long, and holding no state."""
        ready = [place for place, load in enumerate(loads) if load.state == "ready"]
        if len(ready) <= self.least:
            return None
        for place in reversed(ready):
            load = loads[place]
            if not load.items and not load.is_pinned and load.idle_s >= self.idle_s:
                return place
        return None


#: The steps for which work is in flight at a replica: one that runs, and the next one.
STEPS = 2
#: Seconds that a way to a process and back takes about.
_HOP_S = 0.002
#: Abilities that tell how an engine uses the process it is in.
_LOCAL = frozenset({Capability.ENDS_IN_TIME, Capability.SHARES_CORES})


def profile_elsewhere(hosted: EngineProfile, options: ReplicaOptions) -> EngineProfile:
    """Return the profile of an engine for the scheduler, which does not step it here.

    Raises:
        ConfigError: replicas of an engine that only ingests.
    """
    kinds = hosted.kinds
    if options.most_replicas > 1:
        kinds -= {PrimitiveKind.INGESTION}
        if not kinds:
            raise ConfigError(
                "an engine that only ingests has no replicas",
                where=f"{type(options).__name__}.replicas",
                found=options.most_replicas,
                valid="1",
                hint="each replica would know other documents; see RayShards",
            )
    latency = LatencyModel(hosted.latency.base_s + _HOP_S, hosted.latency.per_item_s)
    return replace(
        hosted,
        kinds=kinds,
        max_batch=hosted.max_batch * options.most_replicas * STEPS,
        latency=latency,
        max_threads=0,
        stepped=True,
        interruptible=True,
        capabilities=(hosted.capabilities - _LOCAL) | {Capability.BOUNDS_ITS_WORK},
    )


WaitingT = TypeVar("WaitingT", bound=HostedJob)


class ReplicasEngine(PartsEngine[Replica, PartJobT, ReportT], Generic[PartJobT, WaitingT, ReportT]):
    """A base of engines that other processes execute; see ``PartsEngine``."""

    def __init__(
        self, name: str, profile: EngineProfile, options: ReplicaOptions, clock: Clock | None
    ) -> None:
        super().__init__(profile, name)
        self._options = options
        self._clock = clock or MonotonicClock()
        self._replicas: list[Replica] = []
        self._waiting: list[WaitingT] = []
        self._numbers = itertools.count(1)

    def __repr__(self) -> str:
        return self._where

    @property
    def counts(self) -> Mapping[str, int]:
        """Return what the hosted engines counted, added up."""
        return added_up(replica.counts for replica in self._replicas)

    def _end_parts(self) -> None:
        self._jobs.clear()
        self._waiting.clear()
        self._handles.clear()
        for replica in self._replicas:
            replica.begin_close()
        for replica in self._replicas:
            replica.end_close()

    def _host(
        self, name: str, host: Callable[[], HostProcess], idle: Callable[[], object] | None = None
    ) -> None:
        """Begin to start one more replica; ``idle`` as of ``Replica``."""
        replica = Replica(
            f"{self._where}, {name}", host, self._options, self._clock, self._tell, idle
        )
        self._replicas.append(replica)

    def _wait_for_replicas(self) -> None:
        for replica in self._replicas:
            replica.wait()
            if replica.failure is not None:
                raise replica.failure

    def _tell(self, report: ReplicaReport) -> None:
        """Take a report; on the thread of a replica."""
        raise NotImplementedError

    def _work(self, request: EngineRequest, handle: Handle | None = None) -> HostedWork:
        return HostedWork.of(next(self._numbers), request, handle, self._clock.now())


class HostedEngine(ReplicasEngine[HostedJob, HostedJob, ReplicaReport]):
    """An engine that runs in one or more processes; its answers are those of the hosted engine.

    The scheduler here goes on to see all requests: it hands over at most what two steps of each
    replica take, and each piece goes to the replica with the least in flight. Work that resumes
    from a handle goes to the process that made it.

    A process that is lost ends the work that had streamed or had resumed there in
    ``EngineLostError``; the rest is sent to another replica, or to the process that is started in
    its place. It goes in parts, each to a process without other work, and what is lost again in
    smaller ones, so that work which ends its process ends in the error alone. A replica that is
    added or started again makes its engine of the same arguments.

    Searches may have replicas; ingestion may not, as each would know other documents: more than
    one replica does not take it.

    Args:
        name: in errors and reports.
        host: begins to start a process that hosts the engine.
        options: the number and bounds of the processes.
        clock: is that of ``EngineRequest.deadline``.

    Raises:
        ConfigError: a process with other versions, or one whose engine is another.
        EngineError: a process has not made its engine in time.
        Exception: whatever the factory raises.
    """

    def __init__(
        self,
        name: str,
        host: Callable[[], HostProcess],
        options: ReplicaOptions,
        clock: Clock | None = None,
    ) -> None:
        self._begin = host
        self._replica_numbers = itertools.count(1)
        self._suspects: list[list[HostedJob]] = []
        self._scaling = threading.Lock()
        self._rule = ScalingRule(  # what a step takes is known when a process has told its profile
            options.replicas, options.most_replicas, options.scale_at or sys.maxsize, options.idle_s
        )
        super().__init__(name, EngineProfile(frozenset()), options, clock)  # until a process tells
        try:
            for _ in range(options.replicas):
                self._add_replica()
            hosted = self._hosted_profile()
        except BaseException:
            self.close()
            raise
        self._profile = profile_elsewhere(hosted, options)
        if options.scale_at is None:
            self._rule = replace(self._rule, scale_at=STEPS * hosted.max_batch)

    def health(self) -> Health:
        """Return the health of the replicas; ready where one of them is."""
        return self._health(replica.health() for replica in self._present())

    def describe_parts(self) -> Sequence[str]:
        return [_described(replica) for replica in self._present()]

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        self._require_usable()
        self._scale_out()
        return super().step(budget)

    def hint(self, documents: Sequence[str], namespace: str = "") -> None:
        if Capability.HINT in self._profile.capabilities:
            for replica in tuple(self._replicas):
                replica.hint(documents, namespace)

    def forget(self, documents: Sequence[str], namespace: str = "") -> None:
        """Remove what is kept of texts; a replica that starts does so before it takes work.

        Raises:
            Exception: whatever a hosted engine raises.
        """
        for replica in tuple(self._replicas):
            replica.forget(documents, namespace)

    def _end_parts(self) -> None:
        self._suspects.clear()
        super()._end_parts()

    def _job(self, request: EngineRequest) -> HostedJob:
        self._checked_payload(request, object, self._jobs)
        pin = self._pin_of(request)
        handle = None if pin is None else pin.handle
        return HostedJob(request, pin, work=self._work(request, handle))

    def _free(self, pin: PinnedHandle[Replica]) -> None:
        pin.part.pins -= 1
        pin.part.release(pin.incarnation, [pin.handle])

    def _start(self, jobs: Sequence[HostedJob]) -> None:
        self._waiting += jobs
        self._send_waiting()

    def _abort(self, jobs: Sequence[HostedJob]) -> None:
        self._waiting = [job for job in self._waiting if job not in jobs]
        parts = ([job for job in part if job not in jobs] for part in self._suspects)
        self._suspects = [part for part in parts if part]
        for replica in self._replicas:
            replica.cancel(jobs)

    def _send_waiting(self) -> None:
        """Send work to the replicas with least in flight; without one that is ready it waits."""
        while not self._dispatch():
            pass  # a replica has gone meanwhile: the others take its share
        waiting = [*self._waiting, *itertools.chain(*self._suspects)]
        if waiting and all(replica.state in _GONE for replica in self._replicas):
            self._fail(waiting, self._all_lost())
            self._waiting, self._suspects = [], []

    def _dispatch(self) -> bool:
        """Send what waits; False where a replica refused some that is not bound to it."""
        waiting, self._waiting = self._waiting, []
        items = self._send_suspects(is_alone=not waiting)
        chosen: dict[Replica, list[HostedJob]] = {}
        for job in waiting:
            if job.pin is not None:
                replica = self._having(job, job.pin)
            else:
                replica = min(items, key=items.__getitem__, default=None)
            if replica is None:
                if job.pin is None:
                    self._waiting.append(job)
                continue
            items[replica] = items.get(replica, 0) + job.work.size
            chosen.setdefault(replica, []).append(job)
        refused = [
            job for replica, jobs in chosen.items() if not replica.send(jobs) for job in jobs
        ]
        self._waiting += refused
        return all(job.pin is not None for job in refused)

    def _send_suspects(self, *, is_alone: bool) -> dict[Replica, int]:
        """Send suspects to replicas without other work; return the items of those left for others.

        One that still has work takes no more until it has none. Where other work waits, only one
        replica at a time is put at risk.
        """
        ready = [replica for replica in self._replicas if replica.state == "ready"]
        items = {replica: replica.items for replica in ready if not replica.has_suspects}
        while self._suspects and items and (is_alone or len(items) == len(ready)):
            replica = min(items, key=items.__getitem__)
            if items.pop(replica) or replica.is_in_step:
                break
            if replica.send(self._suspects[0]):
                del self._suspects[0]
        return items

    def _having(self, job: HostedJob, pin: PinnedHandle[Replica]) -> Replica | None:
        """Return the replica that has the state of a job; without one, the job ends in an error."""
        info = pin.part.info
        if info is not None and info.incarnation == pin.incarnation:
            return pin.part
        error = EngineLostError(
            "the process that had the state of a request is gone",
            where=pin.part.name,
            found=f"handle {job.request.handle}",
            hint="send the request again from its beginning",
        )
        self._fail([job], error)
        return None

    def _outputs_of(self, report: ReplicaReport) -> Iterable[EngineOutput]:
        outputs = [self._told(report, job, output) for job, output in report.outputs]
        self._send_again(report)
        self._send_waiting()
        return [output for output in outputs if output is not None]

    def _told(
        self, report: ReplicaReport, job: HostedJob, output: EngineOutput
    ) -> EngineOutput | None:
        """Return an output as the scheduler knows its work; None if that was cancelled."""
        request, replica = job.request, report.replica
        if self._jobs.get(request.id) is not job:
            if output.handle is not None:
                replica.release(report.incarnation, [output.handle])
            return None
        if output.kind in ("final", "error"):
            del self._jobs[request.id]
        replica.pins += output.handle is not None
        return self._pinned(replace(output, id=request.id), replica, report.incarnation)

    def _send_again(self, report: ReplicaReport) -> None:
        """Send lost work again in parts, unless its effects or answers are out already.

        Each loss makes the parts smaller, down to a single one that is known to be at fault.
        """
        lost = [job for job in report.lost if self._jobs.get(job.request.id) is job]
        again = [job for job in lost if self._options.resends and _is_repeatable(job)]
        if len(again) == 1 and again[0].resends >= self._options.resends:
            again = []
        if len(again) < len(lost):
            assert report.error is not None, "a report of lost work says why"
            self._fail([job for job in lost if job not in again], report.error)
        for job in again:
            job.resends += 1
            job.is_suspect = True
            job.call = None
            job.work = self._work(job.request)
        size = max(1, -(-len(again) // _PARTS))
        self._suspects += [again[at : at + size] for at in range(0, len(again), size)]

    def _scale_out(self) -> None:
        """Start a replica where the queue asks for one, and drop those that have ended."""
        if self._options.most_replicas == self._options.replicas:
            return
        self._replicas = self._present()
        waiting = sum(job.work.size for job in self._waiting)
        if self._rule.wants_another(self._loads(self._replicas), waiting):
            self._add_replica()

    def _scale_in(self) -> None:
        """End a replica that is idle for long; on the threads of replicas, as no step runs then."""
        with self._scaling:
            replicas = self._present()
            place = self._rule.surplus(self._loads(replicas))
            if place is not None:
                replicas[place].retire()

    def _present(self) -> list[Replica]:
        """Return the replicas without those that were ended."""
        return [replica for replica in tuple(self._replicas) if replica.state != "closed"]

    def _loads(self, replicas: Sequence[Replica]) -> list[ReplicaLoad]:
        now = self._clock.now()
        return [
            ReplicaLoad(replica.state, replica.items, replica.idle_s(now), replica.pins > 0)
            for replica in replicas
        ]

    def _add_replica(self) -> None:
        scales = self._options.most_replicas > self._options.replicas
        idle = self._scale_in if scales else None
        self._host(f"replica {next(self._replica_numbers)}", self._begin, idle)

    def _tell(self, report: ReplicaReport) -> None:
        self._outbox.put([report])

    def _hosted_profile(self) -> EngineProfile:
        """Return the profile of the hosted engines, when all have been made."""
        self._wait_for_replicas()
        profiles: list[EngineProfile] = []
        for replica in self._replicas:
            if replica.info is None:
                raise EngineLostError("a process was lost as it began", where=replica.name)
            profiles.append(replica.info.profile)
        first = profiles[0]
        for profile in profiles:
            if (profile.kinds, profile.capabilities) != (first.kinds, first.capabilities):
                raise ConfigError(
                    "the replicas of an engine have different profiles",
                    where=self._where,
                    found=f"{profile} and {first}",
                    valid="processes in which the factory makes the same engine",
                )
        return first

    def _all_lost(self) -> EngineLostError:
        why = [replica.health().why for replica in self._replicas]
        return EngineLostError(
            "every process of an engine is lost",
            where=self._where,
            found=why[-1] if why else "no replica",
            hint="see why they died, then make the engine again",
        )


_GONE = ("lost", "closed")
#: Parts of what was lost: few enough to batch, and enough to find soon what ends processes.
_PARTS = 8


def _is_repeatable(job: HostedJob) -> bool:
    is_fresh = not job.is_streamed and job.pin is None
    return is_fresh and job.request.kind is not PrimitiveKind.INGESTION


def _described(replica: Replica) -> str:
    info = replica.info
    where = "" if info is None else f", process {info.pid} on {info.node}"
    return f"{replica.name}: {replica.state}{where}, {replica.items} items in flight"
