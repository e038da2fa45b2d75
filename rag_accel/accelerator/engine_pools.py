"""Lists of engines that do the same, given to an accelerator as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from rag_accel.accelerator.local_llms import as_local_llm
from rag_accel.engine_api import Engine, PrimitiveKind
from rag_accel.errors import ConfigError
from rag_accel.requests.engines import is_engine, role_engine

POOLED: Final = frozenset({"llm", "index", "reranker"})
"""Names under which a list is a pool; elsewhere one of engines that do not embed is."""


def pooled(
    name: str, given: Any, make_llm: Callable[[Any], Engine], step_timeout_s: float
) -> Engine | None:
    """Return the pool that a list becomes; None for anything else.

    Args:
        name: what stages call it.
        given: what the user gave.
        make_llm: makes an engine of a language model that users name.
        step_timeout_s: after so much time a step of a member is lost, and the member with it.

    Raises:
        ConfigError: a member of such a list is no engine, or they do not do the same.
    """
    if not isinstance(given, list | tuple):
        return None
    members: list[Any] = [*given]  # pyright: ignore[reportUnknownArgumentType]
    if name not in POOLED and not (members and all(map(_is_pooled, members))):
        return None
    from rag_accel.engines.replicas.pool import EnginePool

    engines: list[Engine] = []
    try:
        engines.extend(_engine(name, member, make_llm) for member in members)
        return EnginePool(engines, step_timeout_s=step_timeout_s)
    except BaseException:
        for engine in engines:
            engine.close()
        raise


def _is_pooled(member: Any) -> bool:
    if is_engine(member):
        return PrimitiveKind.EMBEDDING not in member.profile.kinds
    return as_local_llm("", member) is not None


def _engine(name: str, member: Any, make_llm: Callable[[Any], Engine]) -> Engine:
    llm = as_local_llm(name, member)
    if llm is not None:
        return make_llm(llm)
    engine = role_engine(name, member)
    if is_engine(engine):
        return engine
    raise ConfigError(
        "a list of engines holds something else",
        where=f"{name}=",
        found=f"{type(member).__module__}.{type(member).__qualname__}",
        valid="engines, language models by name or object, and indexes",
        hint="give a callable alone, and let it choose by itself",
    )
