"""The engine of several embedders that a user has listed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rag_accel.config import Options
from rag_accel.engine_api import Engine, PrimitiveKind
from rag_accel.errors import ConfigError
from rag_accel.requests.engines import is_engine, role_engine

if TYPE_CHECKING:
    from rag_accel.engines.devices.members import Member


def device_group(name: str, given: Sequence[Any], options: Options, cores: int) -> Engine:
    """Return one engine over all embedders listed, the most preferred one first.

    Args:
        name: what stages call it.
        given: engines that embed, names of such, or members.
        options: ``embedding_slo_s``, ``member_tolerance``, ``reproducible`` and limits.
        cores: threads that members here may use.

    Raises:
        ConfigError: nothing was listed, something twice or that embeds nothing, or the first
            member cannot embed.
    """
    from rag_accel.engines.devices.group import DeviceGroup

    if len({id(one) for one in given if not isinstance(one, str)}) < sum(
        not isinstance(one, str) for one in given
    ):
        raise ConfigError(
            "an embedder was listed twice", where=f"{name}=", valid="an engine for each device"
        )
    members = [_member(name, one, options.max_batch) for one in given]
    _name_apart(members)
    return DeviceGroup(
        members,
        slo_s=options.embedding_slo_s,
        tolerance=options.member_tolerance,
        reproducible=options.reproducible,
        hang_s=options.hang_s,
        threads=cores,
    )


def _member(name: str, given: Any, max_texts: int) -> Member:
    from rag_accel.engines.devices.members import EngineMember, Member

    engine = role_engine(name, given) if isinstance(given, str) else given
    if is_engine(engine) and PrimitiveKind.EMBEDDING in engine.profile.kinds:
        return EngineMember(engine, max_texts=max_texts)
    if isinstance(engine, Member):
        return engine
    raise ConfigError(
        "this cannot be a member of a list of embedders",
        where=f"{name}=",
        found=f"{type(given).__module__}.{type(given).__qualname__}",
        valid="an engine that embeds, or the name of one",
        hint="make an engine of a function: rag_accel.engines.CallableEmbeddingEngine(function)",
    )


def _name_apart(members: Sequence[Member]) -> None:
    """Number members of one name, so that reports tell them apart."""
    seen: Counter[str] = Counter()
    for member in members:
        seen[member.name] += 1
        if seen[member.name] > 1:
            member.name = f"{member.name}-{seen[member.name]}"
