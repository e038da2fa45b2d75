"""Groups whose members fail, fall silent and come back, for tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from embeddings_server import vector_of
from fake_members import FakeMember

from rag_accel.engine_api import (
    EngineRequest,
    Health,
    PrimitiveKind,
    StepBudget,
    TextBatch,
    WorkId,
)
from rag_accel.engines import MemberLimits
from rag_accel.engines.devices.group import DeviceGroup
from rag_accel.errors import RemoteEngineError

PATIENCE_S = 30.0
QUICK = MemberLimits(first_pause_s=0.01, longest_pause_s=0.02, second_try_s=0.05, absent_s=20.0)


def request(id: str, *texts: str, role: Any = "query", namespace: str = "") -> EngineRequest:
    payload = TextBatch(texts or (f"text {id}",), role)
    return EngineRequest(WorkId(id), "r", PrimitiveKind.EMBEDDING, payload, namespace=namespace)


@contextmanager
def group(*members: Any, limits: MemberLimits = QUICK, **more: Any) -> Iterator[DeviceGroup]:
    made = DeviceGroup(members, limits=limits, **more)
    for member in members:
        if isinstance(member, FakeMember):
            member.calls.clear()
            member.is_asked.clear()
    try:
        yield made
    finally:
        for member in members:
            if isinstance(member, FakeMember):
                member.may_go.set()
        made.close()


def outcomes(engine: DeviceGroup, *ids: str) -> list[Any]:
    """Step until these works have ended; return their values or errors in order."""
    found: dict[str, Any] = {}
    for _ in range(2000):
        for output in engine.step(StepBudget(1.0)):
            found[output.id] = output.value if output.kind == "final" else output.error
        if len(found) == len(ids):
            return [found[id] for id in ids]
    raise AssertionError(f"only {sorted(found)} ended")


def ended(engine: DeviceGroup, work: EngineRequest) -> Any:
    """Submit a work and return its value or error."""
    engine.submit([work])
    return outcomes(engine, work.id)[0]


def state_of(engine: DeviceGroup, name: str) -> Health:
    (found,) = (part for part in engine.health().parts if part.name == name)
    return found


def wait_until_ready(engine: DeviceGroup, name: str) -> None:
    for _ in range(int(PATIENCE_S / 0.01)):
        if state_of(engine, name).is_ready:
            return
        threading.Event().wait(0.01)
    raise AssertionError(f"{name} did not come back: {state_of(engine, name)}")


def fail(engine: DeviceGroup, member: FakeMember, times: int = 3) -> None:
    """Let a preferred member fail so many works, which others take over."""
    member.error = RemoteEngineError("no connection")
    for number in range(times):
        ended(engine, request(f"fail {number}"))


def served_vectors(texts: Sequence[str], role: str) -> Any:
    return np.array([vector_of(text) for text in texts], dtype=np.float32)
