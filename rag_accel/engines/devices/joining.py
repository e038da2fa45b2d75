"""Which of the members given join a device group, and why the others stay out."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rag_accel.clock import Clock
from rag_accel.engines.devices.admitting import ROLES
from rag_accel.engines.devices.fidelity import Fidelity, compare, embedded, probe_texts
from rag_accel.engines.devices.line import CostLine
from rag_accel.engines.devices.members import Member
from rag_accel.engines.devices.plan import MemberSpec
from rag_accel.engines.embedding.sentence_encoder import Role
from rag_accel.engines.embedding.under_way import Vector
from rag_accel.errors import ConfigError, EngineError, RemoteEngineError

logger = logging.getLogger("rag_accel.engines")

_NUM_LONG = 4  # of the probes, embedded once more to learn how long a step takes


@dataclass(frozen=True, slots=True)
class Joined:
    """A member that takes part.

    Args:
        member: the member.
        spec: what placement is told of it.
        fidelity: how near its vectors are to the first's, None for the first.
    """

    member: Member
    spec: MemberSpec
    fidelity: Fidelity | None

    def __str__(self) -> str:
        if self.fidelity is None:
            return "the first member"
        if self.fidelity.is_exact:
            return "equal vectors on all probes"
        return f"near vectors on the probes: {self.fidelity}"


@dataclass(frozen=True, slots=True)
class Joining:
    """What came of joining.

    Args:
        joined: those that take part, in order of preference.
        excluded: why each of the others does not, by name.
        expected: the first member's vectors of the probes, by role: ``[texts, dim], float32``.
    """

    joined: tuple[Joined, ...]
    excluded: dict[str, str]
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
) -> Joining:
    """Compare all members with the first one; those that stay out are closed.

    Args:
        members: the members, most preferred first; their names are unique.
        clock: measures their first steps.
        tolerance: how far vectors of a member may be from the first's, in any component.
        reproducible: only the first member takes part.
        threads: with how many threads those here compute meanwhile.

    Raises:
        ConfigError: no member, two of one name, or a first one that does not embed the probes.
    """
    if not members:
        raise ConfigError("a device group has no member", valid="one engine or more")
    names = [member.name for member in members]
    if len(set(names)) < len(names):
        found = ", ".join(names)
        raise ConfigError("members of one group have the same name", found=found, valid="others")
    first = members[0]
    try:
        expected = _probe(first, threads)
        joined = [Joined(first, _spec(first, clock, threads), None)]
    except Exception as error:
        close(first)
        raise ConfigError(
            "the first member of a device group cannot embed",
            where=first.name,
            found=f"{type(error).__name__}: {error}",
            hint="give a member that works first, the others are compared with it",
        ) from error
    excluded: dict[str, str] = {}
    for member in members[1:]:
        if reproducible:
            excluded[member.name] = "reproducible: one member computes all vectors"
        else:
            found = compared(member, expected, clock, tolerance, threads)
            if isinstance(found, Joined):
                joined.append(found)
                continue
            excluded[member.name] = found
            logger.warning("member %s stays out of its device group: %s", member.name, found)
        close(member)
    return Joining(tuple(joined), excluded, expected)


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
    is_first: bool = False,
) -> Joined | str:
    """Return a member that joins, or the reason why it does not.

    Args:
        member: asked for the probes.
        expected: the first member's vectors of the probes, by role.
        clock: measures its first steps.
        tolerance: as of ``join``.
        threads: with how many threads it computes.
        is_first: these are its own vectors of before; a server need not repeat each bit of them.
    """
    try:
        found = _probe(member, threads)
        fidelity = _fidelity(expected, found)
        if isinstance(fidelity, str):
            return fidelity
        if fidelity.is_within(tolerance) or (is_first and fidelity.is_same_model):
            spec = _spec(member, clock, threads)
            return Joined(member, spec, None if is_first else fidelity)
    except RemoteEngineError as error:
        return f"no vectors: {error}"
    except EngineError as error:
        return f"bad vectors: {error}"
    except Exception as error:
        return f"it raised {type(error).__name__}: {error}"
    allowed = "1e-06" if tolerance is None else f"member_tolerance={tolerance:g}"
    return f"other vectors: {fidelity}; allowed: {allowed}"


def _fidelity(expected: dict[Role, Vector], found: dict[Role, Vector]) -> Fidelity | str:
    parts: list[Fidelity] = []
    for role, vectors in expected.items():
        if found[role].shape[1] != vectors.shape[1]:
            return f"wrong dimension: {found[role].shape[1]}, not {vectors.shape[1]}"
        parts.append(compare(vectors, found[role]))
    return Fidelity(
        max(part.difference for part in parts),
        min(part.cosine for part in parts),
        all(part.same_top for part in parts),
    )


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


def _spec(member: Member, clock: Clock, threads: int) -> MemberSpec:
    """Measure a short step and a long one, now that the member is warm."""
    texts = probe_texts()
    line = CostLine(0.0, 0.0)
    for some in (texts[:1], texts[-min(_NUM_LONG, member.max_texts) :]):
        began = clock.now()
        embedded(member, some, "query", _threads(member, threads))
        line.add(sum(map(member.estimate, some)), clock.now() - began)
    return MemberSpec(
        member.name,
        line.alpha,
        line.beta,
        member.max_texts,
        member.max_tokens,
        member.max_threads,
        getattr(member, "in_flight", 1),
    )


def _threads(member: Member, threads: int) -> int:
    return min(threads, member.max_threads)
