"""A served embedder as a member of another process's group: equal vectors, busy, and back."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fake_members import FakeMember, plain_vectors
from serving_kit import serving_process

from rag_accel import Accelerator
from rag_accel.accelerator import Work
from rag_accel.engine_api import Health, PrimitiveKind, TextBatch
from rag_accel.engines import RemoteMember
from rag_accel.scheduler.messages import EngineName

PATIENCE_S = 60.0

SERVED = """
import pathlib, time
from rag_accel import Accelerator
from rag_accel.serving import admission
from fake_members import plain_vectors

admission.QUEUE_S = 0.0  # else hundreds of requests as short as these would wait for the place

def embed(texts):
    if texts == ["hold the place"]:
        pathlib.Path("begun").touch()
        while not pathlib.Path("go").exists():
            time.sleep(0.02)
    return plain_vectors(texts, "document")

accelerator = Accelerator(embedder=embed)
"""


def embed(accelerator: Accelerator, *texts: str) -> Any:
    batch = TextBatch(texts)
    work = Work(EngineName("embedder"), PrimitiveKind.EMBEDDING, batch, len(texts))
    return accelerator.leaves.compute(accelerator.anonymous(), work)


def state_of(health: Health, name: str) -> str | None:
    """Return the state of the part of that name, wherever it is."""
    if health.name == name:
        return health.state
    found = (state_of(part, name) for part in health.parts)
    return next((state for state in found if state is not None), None)


def wait_for(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < until, "it never came to be"
        time.sleep(0.02)


@pytest.mark.processes
def test_a_busy_server_pauses_its_member_and_the_member_joins_again(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(SERVED)
    texts = ("one", "retrieval of vectors " * 20, "größe 漢字 \u2028 🎉")
    here = FakeMember("here")
    with (
        serving_process(tmp_path, "app:accelerator", "--max-requests", "1") as (_, url),
        ThreadPoolExecutor(1) as pool,
        Accelerator(
            embedder=[RemoteMember(f"{url}/v1", "accelerator"), here], embedding_slo_s=60.0
        ) as accelerator,
    ):

        def state() -> str | None:
            return state_of(accelerator.health(), "remote")

        np.testing.assert_allclose(
            embed(accelerator, *texts), plain_vectors(texts, "query"), rtol=0, atol=1e-6
        )
        assert state() == "ready"
        here.calls.clear()
        embed(accelerator, "there")
        assert here.calls == []  # the first member is preferred while it is in time

        body = {"model": "accelerator", "input": ["hold the place"]}
        held = pool.submit(httpx.post, f"{url}/v1/embeddings", json=body, timeout=PATIENCE_S)
        wait_for((tmp_path / "begun").exists)
        refused = httpx.post(f"{url}/v1/embeddings", json={**body, "input": "x"}, timeout=30)
        assert (refused.status_code, refused.headers["retry-after"].isdecimal()) == (429, True)
        np.testing.assert_array_equal(
            embed(accelerator, "elsewhere"), plain_vectors(["elsewhere"], "query")
        )
        assert here.calls == [["elsewhere"]]
        assert state() == "paused"

        (tmp_path / "go").touch()
        assert held.result().status_code == 200
        wait_for(lambda: state() == "ready")
        here.calls.clear()
        np.testing.assert_allclose(
            embed(accelerator, "back"), plain_vectors(["back"], "query"), rtol=0, atol=1e-6
        )
        assert here.calls == []
