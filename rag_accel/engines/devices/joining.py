"""Joining of members to a device group, each by a comparison with the first one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rag_accel.clock import Clock
from rag_accel.engines.devices.admitting import ROLES
from rag_accel.engines.devices.fidelity import Fidelity, compare, embedded, probe_texts, worst
from rag_accel.engines.devices.gain import why_slower
from rag_accel.engines.devices.latency_fit import LatencyFit
from rag_accel.engines.devices.members import Member, MemberChangedError
from rag_accel.engines.devices.plan import MemberSpec
from rag_accel.engines.embedding.checked_vectors import Vector
from rag_accel.engines.embedding.sentence_encoder import Role
from rag_accel.errors import ConfigError, EngineError, RemoteEngineError

logger = logging.getLogger("rag_accel.engines")

_NUM_LONG = 4  # of the probes, embedded once more to learn how long a step takes
_SERVER_ERROR = 500
_LATER = (408, 425, 429)  # refusals that may not be repeated


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


def join(
    members: Sequence[Member],
    clock: Clock,
    *,
    tolerance: float | None = None,
    reproducible: bool = False,
    threads: int = 1,
    awaits: bool = False,
) -> Joining:
    """Compare all members with the first one; close those that stay out.

    Args:
        members: the members, most preferred first; their names are unique.
        clock: measures their first steps.
        tolerance: how far vectors of a member may be from the first's, in any component.
        reproducible: only the first member takes part.
        threads: with how many threads those here compute meanwhile.
        awaits: a member elsewhere that gives no answer may join later; if that is the first one,
            the others are compared with the next one that works.

    Raises:
        ConfigError: no member, two of one name, or a first one that does not embed the probes.
    """
    _require_names(members)
    awaits = awaits and not reproducible
    outcomes, expected = _until_one_works(members, clock, threads, awaits)
    reference = members[len(outcomes) - 1].name
    for member in members[len(outcomes) :]:
        if reproducible:
            outcomes.append(NotJoined("reproducible: one member computes all vectors"))
        else:
            outcomes.append(compared(member, expected, clock, tolerance, threads))
    joined: list[Joined] = []
    unreached: dict[str, NotJoined] = {}
    excluded: dict[str, str] = {}
    for member, found in zip(members, outcomes, strict=True):
        if isinstance(found, Joined):
            found = _unless_slower(found, [before.member for before in joined], clock, threads)
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
    return Joining(tuple(joined), unreached, excluded, reference, expected)


def _unless_slower(
    joined: Joined, others: Sequence[Member], clock: Clock, threads: int
) -> Joined | NotJoined:
    try:
        why = why_slower(joined.member, others, clock, threads)
    except Exception as error:
        return _not_joined(joined.member, error)
    return joined if why is None else NotJoined(why)


def close(member: Member) -> None:
    """Close a member; that it fails to is logged."""
    try:
        member.close()
    except Exception:
        logger.exception("member %s failed to close", member.name)


def compared(
    member: Member,
    expected: dict[Role, Vector],
    clock: Clock,
    tolerance: float | None,
    threads: int,
    *,
    first: Fidelity | None = None,
) -> Joined | NotJoined:
    """Return a member that joins, or why it does not.

    Args:
        member: embeds the probes.
        expected: the first member's vectors of the probes, by role.
        clock: measures its first steps.
        tolerance: as of ``join``.
        threads: with how many threads it computes.
        first: if ``expected`` are its own earlier vectors, how near it was to them in other calls;
            a server need not repeat each bit.
    """
    try:
        found = _probe(member, threads)
        fidelity = _fidelity(expected, found)
        if isinstance(fidelity, str):
            return NotJoined(fidelity, is_other_model=True)
        if first is not None and fidelity.is_same_as(first, tolerance):
            return replace(_joined(member, expected, None, clock, threads), repeated=first)
        if first is None and fidelity.is_within(tolerance):
            return _joined(member, found, fidelity, clock, threads)
    except Exception as error:
        return _not_joined(member, error)
    allowed = "1e-06" if tolerance is None else f"member_tolerance={tolerance:g}"
    return NotJoined(f"other vectors: {fidelity}; allowed: {allowed}", is_other_model=True)


def _require_names(members: Sequence[Member]) -> None:
    if not members:
        raise ConfigError("a device group has no member", valid="one engine or more")
    names = [member.name for member in members]
    if len(set(names)) < len(names):
        found = ", ".join(names)
        raise ConfigError("members of one group have the same name", found=found, valid="others")


def _until_one_works(
    members: Sequence[Member], clock: Clock, threads: int, awaits: bool
) -> tuple[list[Joined | NotJoined], dict[Role, Vector]]:
    """Return the outcomes up to the first member that works, and its vectors of the probes.

    Raises:
        ConfigError: the first one fails, and is not awaited or none works; all tried are closed.
    """
    outcomes: list[Joined | NotJoined] = []
    errors: list[Exception] = []
    for member in members:
        try:
            expected = _probe(member, threads)
            return [*outcomes, _joined(member, expected, None, clock, threads)], expected
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


def _probe(member: Member, threads: int) -> dict[Role, Vector]:
    texts = probe_texts()
    size = max(1, min(member.max_texts, len(texts)))
    found: dict[Role, Vector] = {}
    for role in ROLES:
        parts = [
            embedded(member, texts[at : at + size], role, _threads(member, threads))
            for at in range(0, len(texts), size)
        ]
        if len({part.shape[1] for part in parts}) > 1:
            raise EngineError("a member's vectors differ in dimension", where=member.name)
        found[role] = np.concatenate(parts)
    return found


def _joined(
    member: Member,
    found: dict[Role, Vector],
    fidelity: Fidelity | None,
    clock: Clock,
    threads: int,
) -> Joined:
    """Measure a short step and a long one, now that the member is warm, and compare their vectors.

    A kernel that computes with few bits rounds the same text differently in another batch.
    """
    texts = probe_texts()
    line = LatencyFit(0.0, 0.0)
    parts = [] if fidelity is None else [fidelity]
    for some in (slice(1), slice(-min(_NUM_LONG, member.max_texts), None)):
        began = clock.now()
        vectors = embedded(member, texts[some], "query", _threads(member, threads))
        line.add(sum(map(member.estimate, texts[some])), clock.now() - began)
        parts.append(compare(found["query"][some], vectors))
    spec = replace(_spec_of(member), alpha=line.alpha, beta=line.beta)
    return Joined(member, spec, fidelity, worst(parts))


def _spec_of(member: Member) -> MemberSpec:
    """Return a member's own limits, with a guess of the cost of its steps."""
    return MemberSpec(
        member.name,
        max_texts=member.max_texts,
        max_tokens=member.max_tokens,
        max_threads=member.max_threads,
        in_flight=getattr(member, "in_flight", 1),
    )


def _threads(member: Member, threads: int) -> int:
    return min(threads, member.max_threads)
