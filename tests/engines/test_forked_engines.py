"""Engines whose threads are the parent's are refused by name in a forked child, and end nothing."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from rag_accel.engine_api import Engine, EngineRequest, PrimitiveKind, WorkId
from rag_accel.engines.replicas.pool import EnginePool
from rag_accel.engines.rerank.remote import RemoteRerankEngine
from rag_accel.errors import ForkedError
from rag_accel.testing import FakeEngine

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def use_in_a_child(engine: Engine) -> int:
    """Return 0 if a forked child closes nothing and is refused, else what tells why not."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            engine.close()
            engine.submit([EngineRequest(WorkId("w"), "r", PrimitiveKind.DECODING, None)])
        except ForkedError:
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize(
    "make",
    [
        lambda: EnginePool([FakeEngine(), FakeEngine()]),
        lambda: RemoteRerankEngine("http://127.0.0.1:9", "m"),
    ],
    ids=["pool", "http"],
)
def test_a_forked_child_is_refused_by_name_and_ends_nothing(make: Callable[[], Engine]) -> None:
    engine = make()
    try:
        assert use_in_a_child(engine) == 0
    finally:
        engine.close()
