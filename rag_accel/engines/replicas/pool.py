"""Several owned engines that do the same, as one engine of the scheduler."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rag_accel.clock import Clock, MonotonicClock
from rag_accel.engine_api import (
    KINDS,
    Capability,
    Engine,
    EngineOutput,
    EngineProfile,
    EngineRequest,
    ForgettingEngine,
    Health,
    PrimitiveKind,
    StepBudget,
)
from rag_accel.engine_api.health import ReportingEngine
from rag_accel.engine_api.transient import is_doubtful, is_transient, retry_after_s
from rag_accel.engines.replicas.engine_thread import EngineThread, StepReport
from rag_accel.engines.replicas.parts_engine import PartJob, PartsEngine, PinnedHandle, added_up
from rag_accel.engines.replicas.pool_placement import Failure, PoolPlacement, why_of
from rag_accel.errors import BusyError, ConfigError, EngineLostError

Keys = Callable[[EngineRequest], Mapping[Hashable, int]]
"""Returns the beginning and the texts of a work by which members know it, with their lengths."""

#: Abilities that a pool has where one member has them.
_OF_ANY = frozenset({Capability.HINT, Capability.SHARES_CORES})
#: Abilities that change what a search is asked: all members have them, or none.
_OF_ALL = (Capability.EMBEDS, Capability.READS_TEXT)
_CLOSE_S = 10.0
#: How often members are looked at that may hang, in seconds.
LOOK_S = 1.0


@dataclass(slots=True, eq=False)
class PoolJob(PartJob[int]):
    """A work of the pool. Equal only to itself.

    Args:
        keys: by which members know its prompt.
        member: that has it now.
        tried: members that have failed it.
        first_error: what the first member that failed it reported.
        doubt: a member whose failure is its own if the next one ends the work well; until then, the
            work counts as one that it has too, so that it does not look idle.
        is_early: whether it is a beginning that nobody waits for: no load, and never moved.
    """

    keys: Mapping[Hashable, int] = field(kw_only=True)
    member: int | None = None
    tried: set[int] = field(default_factory=set[int])
    first_error: BaseException | None = None
    doubt: tuple[int, Failure] | None = None
    is_early: bool = False


@dataclass(frozen=True, slots=True)
class MemberReport:
    """A report of the thread of a member."""

    member: int
    report: StepReport


class EnginePool(PartsEngine[int, PoolJob, MemberReport]):
    """An engine made of several that give equal results, each on a thread of its own.

    Requests go to the member that would end them soonest; among near ties, to the member that last
    served the same prefix or texts. A member that fails (connections, timeouts,
    HTTP 429 and 5xx, a step that raises) pauses from 0.5 s up to 8 s, or as long as it asks for,
    and is then tried with one work; what it had not begun to stream goes to another, once to each.
    After an error that may be its own (``is_doubtful``) one other member is tried. If that ends the
    work well, the first pauses; otherwise the work ends with the first error, and none does.
    Work that resumes state goes to the member that has it. A beginning that no prompt resumes is
    early work: it goes where its prompt would go now, is no load, and no failure of it counts.
    What only some members execute, and ingestion, which would make them differ, is not executed.

    Args:
        members: engines; the pool alone uses them from then on, and closes them.
        names: what they are called in reports, in their order; by default their class and place.
        keys: tells the parts of a work by which members know its prompt; by default nothing.
        step_timeout_s: a member whose step takes longer is lost, with what it has streamed.
        placement: chooses members, where others choose them too; by default one of its own.
        clock: measures service and pauses.

    Raises:
        ConfigError: no members, one of them twice, or of different kinds.
    """

    def __init__(
        self,
        members: Sequence[Engine],
        *,
        names: Sequence[str] | None = None,
        keys: Keys | None = None,
        step_timeout_s: float = 120.0,
        placement: PoolPlacement | None = None,
        clock: Clock | None = None,
    ) -> None:
        profile = pool_profile(members)
        super().__init__(profile, f"EnginePool of {len(members)}")
        self.names = names or [f"{type(one).__name__} {at}" for at, one in enumerate(members, 1)]
        self._keys = keys or (lambda request: {})
        self._clock = clock or MonotonicClock()
        self._placement = placement or PoolPlacement(len(members), self._clock)
        self._engines = list(members)
        self._threads = [self._thread(at, engine) for at, engine in enumerate(members)]
        self._step_timeout_s = step_timeout_s
        self._moved = 0

    def __repr__(self) -> str:
        return f"EnginePool({', '.join(self.names)})"

    def _thread(self, at: int, engine: Engine) -> EngineThread:
        def tell(report: StepReport) -> None:
            self._outbox.put([MemberReport(at, report)])

        return EngineThread(f"rag-accel-pool-{at + 1}", lambda: engine, tell, self._clock)

    @property
    def counts(self) -> Mapping[str, int]:
        """Return the counts of the members, added up, and how many works have changed members."""
        moved = {"moved_works": self._moved}
        return added_up([moved, *(thread.counts for thread in self._threads)])

    def health(self) -> Health:
        """Return the health of the members; ready where one of them is."""
        return self._health(map(self._member_health, range(len(self._engines))), "no member works")

    def describe_parts(self) -> Sequence[str]:
        return [f"{part.name}: {part.state}" for part in self.health().parts]

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        local = sum(1 for engine in self._engines if engine.profile.max_threads)
        for thread in self._threads:
            thread.threads = max(1, budget.threads // max(1, local))
        return [*super().step(budget), *self._given_up()]

    def _wait_s(self, most: float | None) -> float:
        return LOOK_S if most is None else min(most, LOOK_S)

    def _given_up(self) -> Iterable[EngineOutput]:
        """Give up members whose step hangs; return the ends of works that cannot go elsewhere."""
        found: list[EngineOutput] = []
        for at in filter(self._hangs, self._placement.open_members()):
            held = [job.request.id for job in self._held_by(at)]
            found += self._outputs_of(MemberReport(at, StepReport(is_over=True)))
            self._threads[at].order(lambda steps, held=held: steps.cancel(held))
        found += self._rejected
        self._rejected = []
        return found

    def _hangs(self, at: int) -> bool:
        """Tell whether a member's step takes too long, if it does not bound its work by itself."""
        if Capability.BOUNDS_ITS_WORK in self._engines[at].profile.capabilities:
            return False
        return (self._threads[at].step_s or 0.0) > self._step_timeout_s

    def _held_by(self, place: int) -> list[PoolJob]:
        return [job for job in self._jobs.values() if job.member == place]

    def _free(self, pin: PinnedHandle[int]) -> None:
        self._threads[pin.part].order(lambda steps: steps.engine.release([pin.handle]))

    def hint(self, documents: Sequence[str], namespace: str = "") -> None:
        for engine in self._engines:
            if Capability.HINT in engine.profile.capabilities:
                engine.hint(documents, namespace)

    def forget(self, documents: Sequence[str], namespace: str = "") -> None:
        """Remove what members keep of texts; from any thread."""
        for engine in self._engines:
            if isinstance(engine, ForgettingEngine):
                engine.forget(documents, namespace)

    def _end_parts(self) -> None:
        self._abort(list(self._jobs.values()))
        self._jobs.clear()
        for thread, engine in zip(self._threads, self._engines, strict=True):
            if thread.is_started:
                thread.close()
            else:
                engine.close()
        for thread in self._threads:
            thread.join(_CLOSE_S)

    def _job(self, request: EngineRequest) -> PoolJob:
        self._checked_payload(request, object, self._jobs)
        pin = self._pin_of(request)
        if pin is not None:
            request = replace(request, handle=pin.handle)
        early = pin is None and self._is_early(request)
        return PoolJob(request, pin, keys=self._keys(request), is_early=early)

    def _is_early(self, request: EngineRequest) -> bool:
        """Tell whether a beginning is all that is computed ahead: no prompt resumes it."""
        is_beginning = request.kind is PrimitiveKind.PARTIAL_PREFILLING
        return is_beginning and PrimitiveKind.FULL_PREFILLING not in self._profile.kinds

    def _busy(self) -> BusyError:
        return BusyError(
            "nothing is sent early",
            where=self._where,
            found="the member that a prompt would go to has work, or is paused",
        )

    def _start(self, jobs: Sequence[PoolJob]) -> None:
        chosen: dict[int, list[EngineRequest]] = {}
        now = self._clock.now()
        for job in jobs:
            at, size = None if job.pin is None else job.pin.part, job.request.size
            if job.is_early:
                at = self._placement.early(job.keys, size)
            elif at is None:
                at = self._placement.take(job.keys, size, job.tried)
            elif at in self._placement.open_members():
                self._placement.pin(at, size, job.keys)
            else:  # its state is gone with the member
                self._end(job, self._lost(at))
                continue
            if at is None:
                error = self._busy() if job.is_early else job.first_error or self._all_lost()
                self._end(job, error)
                continue
            job.member, job.sent_at = at, now
            chosen.setdefault(at, []).append(job.request)
        for at, work in chosen.items():
            self._threads[at].start()
            self._threads[at].order(lambda steps, work=work: steps.take(work))

    def _abort(self, jobs: Sequence[PoolJob]) -> None:
        for job in jobs:
            self._decide(job, is_own=False)
            if job.member is not None:
                if not job.is_early:
                    self._placement.left(job.member, job.request.size)
                gone = [job.request.id]
                self._threads[job.member].order(lambda steps, gone=gone: steps.cancel(gone))

    def _outputs_of(self, report: MemberReport) -> Iterable[EngineOutput]:
        found: list[EngineOutput] = []
        again: list[PoolJob] = []
        raised = report.report.raised
        for output in self._ends(report):
            job = self._jobs.get(output.id)
            if job is None or job.member != report.member:
                continue  # cancelled, or sent elsewhere, meanwhile
            told = self._told(job, output, again, is_broken=output.id in raised)
            if told is not None:
                found.append(told)
        self._start(again)
        return found

    def _ends(self, report: MemberReport) -> Iterable[EngineOutput]:
        """Return a report's outputs; of a member that is over, an error for each of its works."""
        if not report.report.is_over:
            return report.report.outputs
        at = report.member
        self._placement.close(at)
        held = self._held_by(at)
        return [EngineOutput(job.request.id, "error", error=self._lost(at)) for job in held]

    def _told(
        self, job: PoolJob, output: EngineOutput, again: list[PoolJob], *, is_broken: bool
    ) -> EngineOutput | None:
        """Return what the scheduler is told of an output; None where the work goes elsewhere."""
        at = job.member
        assert at is not None, "a member reports of work that it was not given"
        if output.kind in ("partial", "progress"):
            job.is_streamed = job.is_streamed or output.kind == "partial"
            return self._pinned(output, at)
        job.member = None
        if job.is_early:
            del self._jobs[output.id]
            return output
        if output.kind == "final" or output.error is None:
            self._placement.left(at, job.request.size)
            seconds = self._clock.now() - job.sent_at
            self._placement.succeeded(at, job.request.size, seconds)
            self._decide(job, is_own=True)
        elif (error := self._failed(job, at, output.error, is_broken)) is None:
            self._moved += 1
            again.append(job)
            return None
        else:
            output = replace(output, error=error)
        del self._jobs[output.id]
        return self._pinned(output, at)

    def _failed(
        self, job: PoolJob, at: int, error: BaseException, is_broken: bool
    ) -> BaseException | None:
        """Note that a member failed a work; return what ends it, None where it goes elsewhere."""
        is_own = is_broken or is_transient(error)
        first_error = job.first_error or error
        is_doubted = not is_own and job.doubt is None and is_doubtful(error)
        failure = Failure(job.sent_at, self._clock.now(), why_of(error), retry_after_s(error))
        job.tried.add(at)
        may_move = (is_own or is_doubted) and self._may_move(job)
        if is_doubted and may_move:
            job.doubt = (at, failure)
        else:
            self._placement.left(at, job.request.size)
        if is_own:
            self._placement.failed(at, failure)
        if may_move:
            job.first_error = first_error
            return None
        is_request = not (is_own or is_doubted or job.doubt)
        self._decide(job, is_own=False)
        return error if is_request else first_error

    def _decide(self, job: PoolJob, is_own: bool) -> None:
        """Pause the member in doubt if the failure was its own; it has the work no longer."""
        if job.doubt is None:
            return
        (at, failure), job.doubt = job.doubt, None
        self._placement.left(at, job.request.size)
        if is_own:
            self._placement.failed(at, failure)

    def _may_move(self, job: PoolJob) -> bool:
        untried = [at for at in self._placement.open_members() if at not in job.tried]
        return job.pin is None and not job.is_streamed and bool(untried)

    def _end(self, job: PoolJob, error: BaseException) -> None:
        """Let a work end in an error, with the outputs of this step or the next."""
        self._decide(job, is_own=False)
        self._fail([job], error)

    def _lost(self, at: int) -> EngineLostError:
        """Return an error for one work: no two requests share it."""
        return EngineLostError(
            "a member of a pool takes no work any more",
            where=self.names[at],
            found=f"its step took longer than {self._step_timeout_s:g} s, or it was closed",
            hint="make the accelerator again; step_timeout_s says how long a step may take",
        )

    def _all_lost(self) -> EngineLostError:
        return EngineLostError(
            "no member of a pool takes work any more",
            where=self._where,
            found=", ".join(self.names),
            hint="make the engines, and the accelerator, again",
        )

    def _member_health(self, at: int) -> Health:
        name, load, engine = self.names[at], self._placement.loads[at], self._engines[at]
        if load.is_closed:
            return Health(name, "lost", "it is closed, or its step hangs")
        failure = load.failure
        why = "" if failure is None else f"it failed: {failure.why}"
        left_s = load.paused_until - self._clock.now()
        if left_s > 0:
            return Health(name, "paused", f"{why}; tried again in {left_s:.1f} s")
        if failure is not None:
            return Health(name, why=f"{why}; tried again with the next work")
        if isinstance(engine, ReportingEngine):
            return replace(engine.health(), name=name)
        return Health(name)


def pool_profile(members: Sequence[Engine]) -> EngineProfile:
    """Return what a pool of these engines does.

    Raises:
        ConfigError: no members, one of them twice, or of different kinds.
    """
    if not members or len({id(one) for one in members}) < len(members):
        raise ConfigError(
            "a pool is made of different engines",
            where="EnginePool(members)",
            found=f"{len(members)} engines, {len({id(one) for one in members})} of them different",
            valid="at least one, each once",
        )
    profiles = [one.profile for one in members]
    kinds = frozenset.intersection(*(profile.kinds for profile in profiles))
    kinds = frozenset(kind for kind in kinds if kind is not PrimitiveKind.INGESTION)
    told = {tuple(ability in profile.capabilities for ability in _OF_ALL) for profile in profiles}
    if not kinds or len(told) > 1:
        raise ConfigError(
            "engines of a pool must do the same",
            where="EnginePool(members)",
            found="; ".join(_described(one) for one in members),
            valid="engines that execute a common kind of work and are asked in the same way",
        )
    # A beginning prefilled by one member is of no use to another: all or nothing of these kinds.
    if any(profile.kinds != profiles[0].kinds for profile in profiles):
        kinds = frozenset(kind for kind in kinds if not KINDS[kind].prefills)
    every = frozenset.intersection(*(profile.capabilities for profile in profiles))
    some = frozenset[Capability]().union(*(profile.capabilities for profile in profiles))
    slowest = max(profiles, key=lambda profile: profile.latency.predict_s(1))
    return EngineProfile(
        kinds,
        max_batch=sum(profile.max_batch for profile in profiles),
        latency=slowest.latency,
        max_threads=sum(profile.max_threads for profile in profiles),
        stepped=True,
        interruptible=True,
        pure=all(profile.pure for profile in profiles),
        capabilities=frozenset(every - {Capability.ENDS_IN_TIME}) | (some & _OF_ANY),
    )


def _described(engine: Engine) -> str:
    abilities = sorted(set(_OF_ALL) & engine.profile.capabilities)
    kinds = ", ".join(sorted(engine.profile.kinds))
    return f"{type(engine).__name__}: {kinds}" + (f" ({', '.join(abilities)})" if abilities else "")
