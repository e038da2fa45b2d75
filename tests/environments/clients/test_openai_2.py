"""Programs whose clients are of openai 2, plain and under tracers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "engines" / "llm"))  # loopback servers

from chat_server import ChatServer, answer_of
from embeddings_server import EmbeddingsServer
from openai_http import httpx

PROGRAM = Path(__file__).with_name("traced_program.py")
CALLERS = 64
PATIENCE_S = 90.0

#: the span that each tracer makes of a call of an openai client
CALL_SPANS = {
    "otel_httpx": "POST",
    "openinference": "CreateEmbeddings",
    "langfuse": "OpenAI-embedding",
    "sentry": "http.client",
    "ddtrace_openai": "openai.request",
    "ddtrace_httpx": "http.request",
}
FRAMEWORKS = ("langchain", "llama_index")


@pytest.fixture
def embeddings() -> Iterator[EmbeddingsServer]:
    with EmbeddingsServer() as server:
        yield server


@pytest.fixture
def chat() -> Iterator[ChatServer]:
    with ChatServer() as server:
        yield server


def outcomes(tracer: str, embeddings: EmbeddingsServer, chat: ChatServer) -> dict[str, Any]:
    """Run the program under a tracer, in a process that has no other."""
    command = [sys.executable, str(PROGRAM), tracer, embeddings.base_url, chat.base_url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_clients_send_by_httpx_here() -> None:
    assert httpx.__name__ == "httpx"


def test_concurrent_queries_share_calls(embeddings: EmbeddingsServer, chat: ChatServer) -> None:
    found = outcomes("nothing", embeddings, chat)
    for framework in FRAMEWORKS:
        assert found[f"{framework} fast"] == found[f"{framework} plain"]
        assert embeddings.models.count(f"{framework} plain") == CALLERS
        assert embeddings.models.count(f"{framework} fast") <= 4


@pytest.mark.parametrize("tracer", CALL_SPANS)
def test_every_call_has_its_span_and_every_caller_its_result(
    embeddings: EmbeddingsServer, chat: ChatServer, tracer: str
) -> None:
    found = outcomes(tracer, embeddings, chat)
    for framework in FRAMEWORKS:
        plain, fast = found[f"{framework} plain"], found[f"{framework} fast"]
        assert fast["result"] == plain["result"]
        num_calls = embeddings.models.count(f"{framework} fast")
        assert 1 <= num_calls <= CALLERS
        assert fast["spans"].count(CALL_SPANS[tracer]) == num_calls
    assert found["RemoteLLM"]["result"] == [answer_of(3)] * 2
    assert chat.num_calls == 2
