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
    Handle,
    Health,
    PrimitiveKind,
    StepBudget,
)
from rag_accel.engine_api.health import ReportingEngine
from rag_accel.engine_api.transient import is_doubtful, is_transient, retry_after_s
from rag_accel.engines.bases import OutboxEngine
from rag_accel.engines.pool.member import MemberReport, PoolMember
from rag_accel.engines.pool.placement import Failure, why_of
from rag_accel.engines.pool.shared import SharedPlacement
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
class PoolJob:
    """A work of the pool.

    Args:
        request: as the pool was given it.
        keys: by which members know its prompt.
        pinned: the member that has its state, for one that resumes.
        member: that has it now.
        tried: members that have failed it.
        began_at: when its member got it.
        has_streamed: whether some of it has been passed on: it is never repeated then.
        first_error: what the first member that failed it reported.
        doubt: a member whose failure is its own if the next one ends the work well; until then, the
            work counts as one that it has too, so that it does not look idle.
        is_early: whether it is a beginning that nobody waits for: no load, and never moved.
    """

    request: EngineRequest
    keys: Mapping[Hashable, int]
    pinned: int | None = None
    member: int | None = None
    tried: set[int] = field(default_factory=set[int])
    began_at: float = 0.0
    has_streamed: bool = False
    first_error: BaseException | None = None
    doubt: tuple[int, Failure] | None = None
    is_early: bool = False


class EnginePool(OutboxEngine[PoolJob, MemberReport]):
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
        placement: SharedPlacement | None = None,
        clock: Clock | None = None,
    ) -> None:
        profile = pool_profile(members)
        super().__init__(profile, f"EnginePool of {len(members)}")
        self.names = names or [f"{type(one).__name__} {at}" for at, one in enumerate(members, 1)]
        self._keys = keys or (lambda request: {})
        self._clock = clock or MonotonicClock()
        self._placement = placement or SharedPlacement(len(members), self._clock)
        self._members = [
            PoolMember(at, engine, lambda report: self._outbox.put([report]), self._clock)
            for at, engine in enumerate(members)
        ]
        self._step_timeout_s = step_timeout_s
        self._moved = 0

    def __repr__(self) -> str:
        return f"EnginePool({', '.join(self.names)})"

    @property
    def counts(self) -> Mapping[str, int]:
        """Return the counts of the members, added up, and how many works have changed members."""
        total: dict[str, int] = {"moved_works": self._moved}
        for member in self._members:
            for name, count in member.counts.items():
                total[name] = total.get(name, 0) + count
        return total

    def health(self) -> Health:
        """Return the health of the members; ready where one of them is."""
        parts = tuple(self._member_health(member) for member in self._members)
        if self._closed:
            return Health(self._where, "lost", "it is closed", parts)
        if any(part.is_ready for part in parts):
            return Health(self._where, parts=parts)
        state = "paused" if any(part.state == "paused" for part in parts) else "lost"
        return Health(self._where, state, "no member takes work", parts)

    def describe_parts(self) -> Sequence[str]:
        return [f"{part.name}: {part.state}" for part in self.health().parts]

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        local = sum(1 for member in self._members if member.profile.max_threads)
        for member in self._members:
            member.threads = max(1, budget.threads // max(1, local))
        return [*super().step(budget), *self._given_up()]

    def _wait_s(self, most: float | None) -> float:
        return LOOK_S if most is None else min(most, LOOK_S)

    def _given_up(self) -> Iterable[EngineOutput]:
        """Give up members whose step hangs; return the ends of works that cannot go elsewhere."""
        found: list[EngineOutput] = []
        for member in self._members:
            if member.place in self._placement.open_members() and member.hangs(
                self._step_timeout_s
            ):
                held = [job.request.id for job in self._held_by(member.place)]
                found += self._outputs_of(MemberReport(member.place, is_over=True))
                member.cancel(held)
        return found

    def _held_by(self, place: int) -> list[PoolJob]:
        return [job for job in self._jobs.values() if job.member == place]

    def release(self, handles: Sequence[Handle]) -> None:
        for handle in handles:
            place, own = _unpinned(handle)
            if place is not None and place < len(self._members):
                self._members[place].release([own])

    def hint(self, documents: Sequence[str], namespace: str = "") -> None:
        for member in self._members:
            if Capability.HINT in member.profile.capabilities:
                member.engine.hint(documents, namespace)

    def forget(self, documents: Sequence[str], namespace: str = "") -> None:
        """Remove what members keep of texts; from any thread."""
        for member in self._members:
            if isinstance(member.engine, ForgettingEngine):
                member.engine.forget(documents, namespace)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._abort(list(self._jobs.values()))
        self._jobs.clear()
        for member in self._members:
            member.close()
        for member in self._members:
            member.join(_CLOSE_S)

    def _job(self, request: EngineRequest) -> PoolJob:
        self._checked_payload(request, object, self._jobs)
        if request.handle is None:
            return PoolJob(request, self._keys(request), is_early=self._is_early(request))
        place, own = _unpinned(request.handle)
        if place is None or place >= len(self._members):
            raise self._refusal("unknown handle", request.handle, "one that a member gave out")
        return PoolJob(replace(request, handle=own), self._keys(request), place)

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
            at, size = job.pinned, job.request.size
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
                self._end(
                    job, self._busy() if job.is_early else job.first_error or self._all_lost()
                )
                continue
            job.member, job.began_at = at, now
            chosen.setdefault(at, []).append(job.request)
        for at, work in chosen.items():
            self._members[at].submit(work)

    def _abort(self, jobs: Sequence[PoolJob]) -> None:
        for job in jobs:
            self._decide(job, is_own=False)
            if job.member is not None:
                if not job.is_early:
                    self._placement.left(job.member, job.request.size)
                self._members[job.member].cancel([job.request.id])

    def _outputs_of(self, report: MemberReport) -> Iterable[EngineOutput]:
        found: list[EngineOutput] = []
        again: list[PoolJob] = []
        for output in self._ends(report):
            job = self._jobs.get(output.id)
            if job is None or job.member != report.member:
                continue  # cancelled, or sent elsewhere, meanwhile
            told = self._told(job, output, again, is_broken=report.is_broken)
            if told is not None:
                found.append(told)
        self._start(again)
        rejected, self._rejected = self._rejected, []
        return [*found, *rejected]

    def _ends(self, report: MemberReport) -> Iterable[EngineOutput]:
        """Return a report's outputs; of a member that is over, an error for each of its works."""
        if not report.is_over:
            return report.outputs
        self._placement.close(report.member)
        at = report.member
        held = self._held_by(at)
        return [EngineOutput(job.request.id, "error", error=self._lost(at)) for job in held]

    def _told(
        self, job: PoolJob, output: EngineOutput, again: list[PoolJob], *, is_broken: bool
    ) -> EngineOutput | None:
        """Return what the scheduler is told of an output; None where the work goes elsewhere."""
        at = job.member
        assert at is not None, "a member reports of work that it was not given"
        if output.kind in ("partial", "progress"):
            job.has_streamed = job.has_streamed or output.kind == "partial"
            return _pinned(output, at)
        job.member = None
        if job.is_early:
            del self._jobs[output.id]
            return output
        if output.kind == "final" or output.error is None:
            self._placement.left(at, job.request.size)
            seconds = self._clock.now() - job.began_at
            self._placement.succeeded(at, job.request.size, seconds)
            self._decide(job, is_own=True)
        elif (error := self._failed(job, at, output.error, is_broken)) is None:
            self._moved += 1
            again.append(job)
            return None
        else:
            output = replace(output, error=error)
        del self._jobs[output.id]
        return _pinned(output, at)

    def _failed(
        self, job: PoolJob, at: int, error: BaseException, is_broken: bool
    ) -> BaseException | None:
        """Note that a member failed a work; return what ends it, None where it goes elsewhere."""
        is_own = is_broken or is_transient(error)
        first_error = job.first_error or error
        is_doubted = not is_own and job.doubt is None and is_doubtful(error)
        failure = Failure(job.began_at, self._clock.now(), why_of(error), retry_after_s(error))
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
        return job.pinned is None and not job.has_streamed and bool(untried)

    def _end(self, job: PoolJob, error: BaseException) -> None:
        """Let a work end in an error, with the outputs of this step or the next."""
        self._jobs.pop(job.request.id, None)
        self._decide(job, is_own=False)
        self._rejected.append(EngineOutput(job.request.id, "error", error=error))
        self._outbox.interrupt()

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

    def _member_health(self, member: PoolMember) -> Health:
        name, load = self.names[member.place], self._placement.load(member.place)
        if load.is_closed:
            return Health(name, "lost", "it is closed, or its step hangs")
        failure = load.failure
        why = "" if failure is None else f"it failed: {failure.why}"
        left_s = load.paused_until - self._clock.now()
        if left_s > 0:
            return Health(name, "paused", f"{why}; tried again in {left_s:.1f} s")
        if failure is not None:
            return Health(name, why=f"{why}; tried again with the next work")
        if isinstance(member.engine, ReportingEngine):
            own = member.engine.health()
            return replace(own, name=name)
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


def _pinned(output: EngineOutput, place: int) -> EngineOutput:
    """Return an output whose handle tells the member that has the state."""
    if output.handle is None:
        return output
    return replace(output, handle=Handle(f"{place}:{output.handle}"))


def _unpinned(handle: Handle) -> tuple[int | None, Handle]:
    """Return the member of a handle and what that calls it; None for a handle of no pool."""
    place, _, own = handle.partition(":")
    return (int(place), Handle(own)) if place.isdecimal() and own else (None, handle)
