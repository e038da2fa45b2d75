"""The engine of several embedders that a user has listed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rag_accel.accelerator.listed_devices import (
    CopiedModel,
    device_name,
    engine_on,
    is_device,
    is_sentence_transformer,
)
from rag_accel.config import Options
from rag_accel.engine_api import PrimitiveKind
from rag_accel.errors import ConfigError
from rag_accel.requests.engines import is_engine, role_engine

if TYPE_CHECKING:
    from rag_accel.engines.devices.group import DeviceGroup
    from rag_accel.engines.devices.members import Member


def device_group(name: str, given: Sequence[Any], options: Options, cores: int) -> DeviceGroup:
    """Return one engine over all embedders listed, the most preferred one first.

    Args:
        name: what stages call it.
        given: engines that embed or names of such, SentenceTransformer objects, devices (the model
            of the others there is computed there too, else the packaged one), or members.
        options: ``embedding_slo_s``, ``member_tolerance``, ``reproducible`` and limits.
        cores: threads that members here may use.

    Raises:
        ConfigError: nothing was listed, something twice or that embeds nothing, a device that is
            not there, or a first member that cannot embed.
    """
    return group_of(listed_members(name, given, options), options, cores)


def group_of(members: Sequence[Member], options: Options, cores: int) -> DeviceGroup:
    """Return one engine over members, the most preferred one first. Raises as ``DeviceGroup``."""
    from rag_accel.engines.devices.group import DeviceGroup

    return DeviceGroup(
        members,
        slo_s=options.embedding_slo_s,
        tolerance=options.member_tolerance,
        reproducible=options.reproducible,
        refuses_late=options.on_full == "raise",
        step_timeout_s=options.step_timeout_s,
        threads=cores,
    )


def listed_members(
    name: str, given: Sequence[Any], options: Options, model: CopiedModel | None = None
) -> list[Member]:
    """Return a member for each thing listed; those made here are closed if a later one fails.

    Args:
        name: what stages call the list.
        given: what is listed.
        options: as of ``device_group``.
        model: what devices and processes compute; None for the model of the list.

    Raises:
        ConfigError: something was listed twice, embeds nothing, or is a device that is not there.
    """
    require_apart(name, given)
    members: list[Member] = []
    try:
        for entry in given:
            copied = None if model is None else model.member(entry)
            members.append(copied or _member(name, entry, given, options))
    except BaseException:
        for member, entry in zip(members, given, strict=False):
            if member is not entry and getattr(member, "engine", None) is not entry:
                member.close()
        raise
    _name_apart(members)
    return members


def _member(name: str, given: Any, others: Sequence[Any], options: Options) -> Member:
    from rag_accel.engines.devices.members import EngineMember, Member
    from rag_accel.engines.embedding.engine import SentenceTransformerEngine

    max_texts, runtime = options.max_batch, options.embedding_runtime
    if is_device(given):
        return EngineMember(engine_on(given, others, runtime), max_texts=max_texts)
    if is_sentence_transformer(given):
        engine = SentenceTransformerEngine(given, runtime=runtime)
        return EngineMember(engine, max_texts=max_texts)
    engine = role_engine(name, given) if isinstance(given, str) else given
    if is_engine(engine) and PrimitiveKind.EMBEDDING in engine.profile.kinds:
        return EngineMember(engine, max_texts=max_texts)
    if isinstance(engine, Member):
        return engine
    raise ConfigError(
        "this cannot be a member of a list of embedders",
        where=f"{name}=",
        found=f"{type(given).__module__}.{type(given).__qualname__}",
        valid="an engine that embeds or the name of one, a SentenceTransformer, a device such as "
        "'cpu' or 'cuda:0', a ProcessMember or a RemoteMember",
        hint="make an engine of a function: rag_accel.engines.CallableEmbeddingEngine(function)",
    )


def require_apart(name: str, given: Sequence[Any]) -> None:
    """Refuse what would be one device or one model object for two members.

    Raises:
        ConfigError: something is listed twice.
    """
    seen: dict[object, Any] = {}
    for entry in given:
        for key in _own_things(entry):
            if key in seen:
                raise ConfigError(
                    "an embedder was listed twice",
                    where=f"{name}=",
                    found=key if isinstance(key, str) else type(entry).__qualname__,
                    valid="a device, an engine and a model object of its own for each member",
                )
            seen[key] = entry


def _own_things(given: Any) -> list[object]:
    """Return keys of the things that only one member may have."""
    if isinstance(given, str):
        return [device_name(given)] if is_device(given) else []
    model = getattr(given, "model", None)
    return [id(given), *([id(model)] if is_sentence_transformer(model) else [])]


def _name_apart(members: Sequence[Member]) -> None:
    """Number members of one name, so that reports tell them apart."""
    seen: Counter[str] = Counter()
    for member in members:
        seen[member.name] += 1
        if seen[member.name] > 1:
            member.name = f"{member.name}-{seen[member.name]}"
