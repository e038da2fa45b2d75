"""Joining of members to a device group, each by a comparison with the first one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count, cycle, islice

import numpy as np

from rag_accel.clock import Clock
from rag_accel.engines.devices.fidelity import (
    Fidelity,
    checked,
    compare,
    embedded,
    probe_texts,
    worst,
)
from rag_accel.engines.devices.members import (
    ROLES,
    EngineMember,
    InterruptibleMember,
    Member,
    MemberChangedError,
)
from rag_accel.engines.devices.plan import LatencyFit, MemberLimits, MemberSpec
from rag_accel.engines.embedding.checked_vectors import Vector
from rag_accel.engines.embedding.sentence_encoder import Role
from rag_accel.errors import ConfigError, EngineError, RemoteEngineError

logger = logging.getLogger("rag_accel.engines")

_NUM_LONG = 4  # of the probes, embedded once more to learn how long a step takes
_SERVER_ERROR = 500
_LATER = (408, 425, 429)  # refusals that may not be repeated


_NUM_SAMPLES = 4  # of the probes, short ones, embedded as queries
_WITHOUT_ROOM = 16  # times as many texts in calls that have no room for a probe


@dataclass(frozen=True, slots=True)
class Joined:
    """A member that takes part.

    Args:
        member: the member.
        spec: its speed and limits, for placement.
        fidelity: how near its vectors are to the first's, None for the first.
        repeated: how near they are too, and to those of the same texts in other calls; None if it
            has not been reached.
    """

    member: Member
    spec: MemberSpec
    fidelity: Fidelity | None
    repeated: Fidelity | None = None

    def __str__(self) -> str:
        if self.fidelity is None:
            return "the first member"
        if self.fidelity.is_exact:
            return "equal vectors on all probes"
        return f"near vectors on the probes: {self.fidelity}"


@dataclass(frozen=True, slots=True)
class NotJoined:
    """The reason why a member does not join.

    Args:
        why: for people.
        is_unreached: no answer came from elsewhere, so one may come later.
        is_other_model: it answers with vectors that are not the expected ones.
    """

    why: str
    is_unreached: bool = False
    is_other_model: bool = False


@dataclass(frozen=True, slots=True)
class Joining:
    """The members that joined, and the reasons of the others.

    Args:
        joined: those that take part, in order of preference, and those that may do so later.
        unreached: why each of the latter does not yet, by name.
        excluded: why each of the others does not, by name.
        reference: the name of the member with which the others are compared: the first that could
            be reached.
        expected: its vectors of the probes, by role: ``[texts, dim], float32``.
    """

    joined: tuple[Joined, ...]
    unreached: dict[str, NotJoined]
    excluded: dict[str, str]
    reference: str
    expected: dict[Role, Vector]

    @property
    def dimensions(self) -> dict[Role, int]:
        """Return the components of a vector of each role."""
        return {role: vectors.shape[1] for role, vectors in self.expected.items()}


class MemberProber:
    """Comparisons of members with the first one, by their vectors of fixed texts.

    A probe holds none of any request. Once members have joined, each is probed on a thread of its
    own.

    Args:
        clock: measures the first steps of members.
        tolerance: how far vectors of a member may be from the first's, in any component.
        threads: with how many threads members here compute meanwhile.
        limits: how long a probe of a member that has joined may take.
    """

    def __init__(
        self,
        clock: Clock,
        tolerance: float | None = None,
        threads: int = 1,
        limits: MemberLimits | None = None,
    ) -> None:
        self._clock = clock
        self._tolerance = tolerance
        self._threads = threads
        self._probe_s = (limits or MemberLimits()).probe_s
        self._reference = ""
        self._expected: dict[Role, Vector] = {}
        self._repeated: dict[str, Fidelity | None] = {}

    def join(
        self, members: Sequence[Member], *, reproducible: bool = False, awaits: bool = False
    ) -> Joining:
        """Compare all members with the first one; close those that stay out.

        Args:
            members: the members, most preferred first; their names are unique.
            reproducible: only the first member takes part.
            awaits: a member elsewhere that gives no answer may join later; if that is the first
                one, the others are compared with the next one that works.

        Raises:
            ConfigError: no member, two of one name, or a first one that does not embed the probes.
        """
        _require_names(members)
        awaits = awaits and not reproducible
        outcomes = self._until_one_works(members, awaits)
        self._reference = members[len(outcomes) - 1].name
        for member in members[len(outcomes) :]:
            if reproducible:
                outcomes.append(NotJoined("reproducible: one member computes all vectors"))
            else:
                outcomes.append(self._compared(member))
        joined: list[Joined] = []
        unreached: dict[str, NotJoined] = {}
        excluded: dict[str, str] = {}
        for member, found in zip(members, outcomes, strict=True):
            if isinstance(found, Joined):
                found = self._unless_slower(found, [before.member for before in joined])
            if isinstance(found, Joined):
                joined.append(found)
            elif awaits and found.is_unreached:
                joined.append(Joined(member, _spec_of(member), None))
                unreached[member.name] = found
            else:
                excluded[member.name] = found.why
                if not reproducible:
                    logger.warning(
                        "member %s stays out of its device group: %s", member.name, found.why
                    )
                close(member)
        self._repeated = {each.member.name: each.repeated for each in joined}
        return Joining(tuple(joined), unreached, excluded, self._reference, self._expected)

    def rejoined(self, member: Member) -> Joined | NotJoined:
        """Return a member that may join again, or why it may not."""
        first = self._repeated[member.name] if member.name == self._reference else None
        with _limited(member, self._probe_s):
            found = self._compared(member, first)
        if isinstance(found, Joined):
            self._repeated[member.name] = found.repeated
        return found

    def require_same(self, member: Member) -> None:
        """Compare the vectors of a few probes: directions, components and lengths.

        Raises:
            MemberChangedError: they are those of another model.
            Exception: what the member raised.
        """
        count = max(1, min(_NUM_SAMPLES, member.max_texts))
        with _limited(member, self._probe_s):
            values = member.embed(probe_texts()[:count], "query", 0)
        self._require(member, self._expected["query"][:count], checked(values, count, None))

    def require_same_vector(self, member: Member, role: Role, number: int, vector: Vector) -> None:
        """Compare the vector of one probe, ``[dim], float32``.

        Raises:
            MemberChangedError: it is that of another model.
        """
        self._require(member, self._expected[role][number : number + 1], vector[None])

    def _require(self, member: Member, expected: Vector, found: Vector) -> None:
        hint = "serve the same model there again, or make another accelerator"
        if found.shape != expected.shape:
            why, valid = f"dimension {found.shape[1]}", f"{expected.shape[1]}"
        else:
            fidelity, joined = compare(expected, found), self._repeated[member.name]
            if joined is not None and fidelity.is_same_as(joined, self._tolerance):
                return
            why, valid = str(fidelity), "the vectors of the probes as when it joined"
        raise MemberChangedError(
            "a member embeds as another model than the one that joined",
            where=f"member {member.name}",
            found=why,
            valid=valid,
            hint=hint,
        )

    def _until_one_works(self, members: Sequence[Member], awaits: bool) -> list[Joined | NotJoined]:
        """Return the outcomes up to the first member that works; its vectors are expected then.

        Raises:
            ConfigError: the first one fails, and is not awaited or none works; all tried are
                closed.
        """
        outcomes: list[Joined | NotJoined] = []
        errors: list[Exception] = []
        for member in members:
            try:
                self._expected = self._probe(member)
                return [*outcomes, self._joined(member, self._expected, None)]
            except Exception as error:
                errors.append(error)
                outcomes.append(found := _not_joined(member, error))
            if len(outcomes) == 1 and not (awaits and found.is_unreached):
                break
        for member, _ in zip(members, outcomes, strict=False):
            close(member)
        raise ConfigError(
            "the first member of a device group cannot embed",
            where=members[0].name,
            found=f"{type(errors[0]).__name__}: {errors[0]}",
            hint="give a member that works first, the others are compared with it",
        ) from errors[0]

    def _compared(self, member: Member, first: Fidelity | None = None) -> Joined | NotJoined:
        """Return a member that joins, or why it does not.

        Args:
            member: embeds the probes.
            first: if it is compared with its own earlier vectors, how near it was to them in other
                calls; a server need not repeat each bit.
        """
        expected, tolerance = self._expected, self._tolerance
        try:
            found = self._probe(member)
            fidelity = _fidelity(expected, found)
            if isinstance(fidelity, str):
                return NotJoined(fidelity, is_other_model=True)
            if first is not None and fidelity.is_same_as(first, tolerance):
                return replace(self._joined(member, expected, None), repeated=first)
            if first is None and fidelity.is_within(tolerance):
                return self._joined(member, found, fidelity)
        except Exception as error:
            return _not_joined(member, error)
        allowed = "1e-06" if tolerance is None else f"member_tolerance={tolerance:g}"
        return NotJoined(f"other vectors: {fidelity}; allowed: {allowed}", is_other_model=True)

    def _unless_slower(self, joined: Joined, others: Sequence[Member]) -> Joined | NotJoined:
        try:
            why = why_slower(joined.member, others, self._clock, self._threads)
        except Exception as error:
            return _not_joined(joined.member, error)
        return joined if why is None else NotJoined(why)

    def _probe(self, member: Member) -> dict[Role, Vector]:
        texts = probe_texts()
        size = max(1, min(member.max_texts, len(texts)))
        found: dict[Role, Vector] = {}
        for role in ROLES:
            starts = range(0, len(texts), size)
            parts = [self._embedded(member, texts[at : at + size], role) for at in starts]
            if len({part.shape[1] for part in parts}) > 1:
                raise EngineError("a member's vectors differ in dimension", where=member.name)
            found[role] = np.concatenate(parts)
        return found

    def _joined(
        self, member: Member, found: dict[Role, Vector], fidelity: Fidelity | None
    ) -> Joined:
        """Measure a short step and a long one, now that it is warm, and compare their vectors.

        A kernel that computes with few bits rounds the same text differently in another batch.
        """
        texts = probe_texts()
        line = LatencyFit(0.0, 0.0)
        parts = [] if fidelity is None else [fidelity]
        for some in (slice(1), slice(-min(_NUM_LONG, member.max_texts), None)):
            began = self._clock.now()
            vectors = self._embedded(member, texts[some], "query")
            line.add(sum(map(member.estimate, texts[some])), self._clock.now() - began)
            parts.append(compare(found["query"][some], vectors))
        spec = replace(_spec_of(member), alpha=line.alpha, beta=line.beta)
        return Joined(member, spec, fidelity, worst(parts))

    def _embedded(self, member: Member, texts: Sequence[str], role: Role) -> Vector:
        return embedded(member, texts, role, min(self._threads, member.max_threads))


def close(member: Member) -> None:
    """Close a member; that it fails to is logged."""
    try:
        member.close()
    except Exception:
        logger.exception("member %s failed to close", member.name)


def _require_names(members: Sequence[Member]) -> None:
    if not members:
        raise ConfigError("a device group has no member", valid="one engine or more")
    names = [member.name for member in members]
    if len(set(names)) < len(names):
        found = ", ".join(names)
        raise ConfigError("members of one group have the same name", found=found, valid="others")


def _not_joined(member: Member, error: Exception) -> NotJoined:
    """Return why a member that raised does not join.

    A remote one may join later where no answer came, or an error that is none of the texts'.
    """
    if isinstance(error, RemoteEngineError):
        status = error.status
        is_answered = status is not None and status < _SERVER_ERROR and status not in _LATER
        is_unreached = member.max_threads == 0 and not is_answered
        return NotJoined(f"no vectors: {error}", is_unreached=is_unreached)
    if isinstance(error, EngineError):
        is_changed = isinstance(error, MemberChangedError)
        return NotJoined(f"bad vectors: {error}", is_other_model=is_changed)
    return NotJoined(f"it raised {type(error).__name__}: {error}")


def _fidelity(expected: dict[Role, Vector], found: dict[Role, Vector]) -> Fidelity | str:
    parts: list[Fidelity] = []
    for role, vectors in expected.items():
        if found[role].shape[1] != vectors.shape[1]:
            return f"wrong dimension: {found[role].shape[1]}, not {vectors.shape[1]}"
        parts.append(compare(vectors, found[role]))
    return worst(parts)


def _spec_of(member: Member) -> MemberSpec:
    """Return a member's own limits, with a guess of the cost of its steps."""
    return MemberSpec(
        member.name,
        max_texts=member.max_texts,
        max_tokens=member.max_tokens,
        max_threads=member.max_threads,
        in_flight=getattr(member, "in_flight", 1),
    )


MEASURED_S = 0.25
"""Seconds for which members embed, and longer until each has embedded one batch."""

TURNS = 2
"""Measurements of each way, of which the fastest counts."""

NOISE = 0.05
"""The share by which two measurements of the same may differ."""


def why_slower(member: Member, others: Sequence[Member], clock: Clock, threads: int) -> str | None:
    """Return why a member would slow the others by more than it adds; None if it does not.

    Args:
        member: one that may join.
        others: those that have; all are measured if one is an accelerator of this process.
        clock: measures.
        threads: with how many threads a processor computes.

    Raises:
        Exception: what a member raised.
    """
    if not member.max_threads or not any(map(_is_accelerator_here, others)):
        return None
    alone = together = 0.0
    for _ in range(TURNS):
        alone = max(alone, _texts_per_s(others, clock, threads))
        together = max(together, _texts_per_s([*others, member], clock, threads))
    if together >= (1.0 - NOISE) * alone:
        return None
    return f"it slows the others: {together:.0f} texts/s with it, {alone:.0f} without"


def _is_accelerator_here(member: Member) -> bool:
    device = getattr(getattr(getattr(member, "engine", None), "model", None), "device", None)
    return isinstance(member, EngineMember) and not member.max_threads and device is not None


def _texts_per_s(members: Sequence[Member], clock: Clock, threads: int) -> float:
    """Return the texts per second of members that embed full batches at the same time."""
    runs = [_BatchRun(member, clock, min(threads, member.max_threads)) for member in members]
    are_over = threading.Event()
    workers = [
        threading.Thread(target=run.embed_until, args=(are_over,), daemon=True) for run in runs
    ]
    began = clock.now()
    try:
        for worker in workers:
            worker.start()
        for run in runs:
            run.has_begun.wait()
        are_over.wait(max(0.0, began + MEASURED_S - clock.now()))
    finally:
        are_over.set()
    for worker in workers:
        worker.join()
    for run in runs:
        if run.error is not None:
            raise run.error
    return sum(run.texts / run.seconds for run in runs if run.seconds > 0.0)


class _BatchRun:
    """The batches of one member on a thread of its own."""

    def __init__(self, member: Member, clock: Clock, threads: int) -> None:
        self._member = member
        self._clock = clock
        self._threads = threads
        longest = max(map(member.estimate, probe_texts()))
        self._size = max(1, min(member.max_texts, member.max_tokens // longest))
        #: a first batch has ended
        self.has_begun = threading.Event()
        self.texts = 0
        self.seconds = 0.0
        self.error: Exception | None = None

    def embed_until(self, are_over: threading.Event) -> None:
        source, numbers, began = cycle(probe_texts()), count(), self._clock.now()
        try:
            while not (self.has_begun.is_set() and are_over.is_set()):
                # None of them twice: members may keep vectors.
                texts = [f"{text} {next(numbers)}" for text in islice(source, self._size)]
                embedded(self._member, texts, "query", self._threads)
                self.texts += len(texts)
                self.seconds = self._clock.now() - began
                self.has_begun.set()
        except Exception as error:
            self.error = error
        finally:
            self.has_begun.set()


class DueComparison:
    """The schedule of comparisons of a member: after a failure, and by time and texts.

    Args:
        clock: the time.
        every_s: seconds between two comparisons of a member in use.
        every_texts: texts after which one of a server is due, with the texts of a call.
    """

    def __init__(self, clock: Clock, every_s: float, every_texts: float) -> None:
        self._clock = clock
        self._every_s = every_s
        self._every_texts = every_texts
        self._compared_at = clock.now()
        self._has_failed = False
        self._num_texts = 0
        self._num_probes = 0

    @property
    def is_due(self) -> bool:
        """Tell whether the member must be compared before it is given any text."""
        return (
            self._has_failed
            or self._clock.now() - self._compared_at >= self._every_s
            or self._num_texts >= _WITHOUT_ROOM * max(1.0, self._every_texts)
        )

    def probe_with(self, num_texts: int, most_texts: int) -> int | None:
        """Note the texts of a call to a server; return which probe it should hold too, if any."""
        self._num_texts += num_texts
        if self._num_texts < self._every_texts or num_texts >= most_texts:
            return None
        self._num_probes += 1
        return self._num_probes % _NUM_SAMPLES

    def failed(self) -> None:
        """Let the member be compared before its next step."""
        self._has_failed = True

    def compared(self) -> None:
        """Note that the member was the same just now."""
        self._compared_at = self._clock.now()
        self._has_failed = False
        self._num_texts = 0


@contextmanager
def _limited(member: Member, seconds: float) -> Iterator[None]:
    """Interrupt the calls of a member that can be interrupted, should they take too long."""
    if not isinstance(member, InterruptibleMember):
        yield
        return
    timer = threading.Timer(seconds, member.interrupt)
    timer.daemon = True
    timer.name = f"rag-accel-limit-{member.name}"
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
