"""Let the tests of this room share their helpers and a chat server."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from chat_server import ChatServer
from llm_harness import MakeEngine, Naps

from rag_accel.engines.llm.remote.engine import OpenAICompatibleEngine


@pytest.fixture
def server() -> Iterator[ChatServer]:
    """Yield a loopback server of chat completions."""
    with ChatServer() as made:
        yield made


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> Naps:
    """Return the pauses the HTTP engines of a test have made; none of them is slept."""
    made = Naps()
    monkeypatch.setattr("anyio.sleep", made)
    return made


@pytest.fixture
def make_engine(naps: Naps) -> Iterator[MakeEngine]:
    """Yield a maker of HTTP engines that do not sleep and are closed after the test."""
    made: list[OpenAICompatibleEngine] = []

    def make(base_url: str = "http://server.test/v1", **fields: Any) -> OpenAICompatibleEngine:
        engine = OpenAICompatibleEngine(base_url, "m", **fields)
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.close()


@pytest.fixture
def remote(make_engine: MakeEngine, server: ChatServer) -> OpenAICompatibleEngine:
    """Return an HTTP engine of that server."""
    return make_engine(server.base_url)
