"""Calls of borrowed engines, admitted as the wrappers of leaves have them admitted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from rag_accel.accelerator import Accelerator, RequestIdentity
from rag_accel.engine_api import PrimitiveKind
from rag_accel.scheduler.messages import EngineName


def make_call(
    acc: Accelerator,
    identity: RequestIdentity,
    engine: EngineName,
    kind: PrimitiveKind,
    fn: Callable[[], Any],
) -> Any:
    """Run ``fn`` here once a borrowed engine admits it, as the wrappers of leaves do."""
    with acc.leaves.permit(identity, engine, kind):
        return fn()


async def amake_call(
    acc: Accelerator,
    identity: RequestIdentity,
    engine: EngineName,
    kind: PrimitiveKind,
    fn: Callable[[], Awaitable[Any]],
) -> Any:
    """Await ``fn()`` on this loop once a borrowed engine admits it."""
    async with acc.leaves.permit(identity, engine, kind):
        return await fn()
