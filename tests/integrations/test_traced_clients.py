"""Clients of servers share calls under tracers, whose traces stay each user's own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "engines" / "llm"))

import openai
from chat_server import answer_of
from openai_http import httpx

PROGRAM = Path(__file__).with_name("traced_program.py")
SERVERS = PROGRAM.parents[1] / "engines" / "llm"
PATIENCE_S = 120
FRAMEWORKS = ("langchain", "llama_index")
#: the module that each tracer needs, and the names of its spans of a call
TRACERS = {
    "ddtrace": ("ddtrace", ("openai.request", "http.request")),
    "httpx": ("opentelemetry.instrumentation.httpx", ("POST",)),
    "langfuse": ("langfuse", ("OpenAI-embedding",)),
    "openinference": ("openinference.instrumentation.openai", ("CreateEmbeddings",)),
    "sentry": ("sentry_sdk", ("http.client",)),
}
SHARED = "rag_accel.shared_embeddings"


def run(tracer: str) -> dict[str, Any]:
    """Run the program in a process of its own: a tracer is never switched off again."""
    folders = (str(SERVERS), str(PROGRAM.parents[1]), os.environ.get("PYTHONPATH", ""))
    ran = subprocess.run(
        [sys.executable, str(PROGRAM), tracer],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["RemoteLLM"] == [answer_of(3)] * 2
    assert found["RemoteLLM calls"] == 2
    for framework in FRAMEWORKS:
        assert found[framework]["equal"]
        assert len(found[framework]["calls"]) <= 4
        assert "share its calls" in found[framework]["explain"]
    return found


def is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def test_clients_send_by_the_http_package_of_their_openai() -> None:
    assert httpx.__name__ == ("httpx" if openai.__version__.startswith("2.") else "httpx2")


@pytest.mark.parametrize("tracer", TRACERS)
def test_calls_are_shared_and_traces_are_each_users_own(tracer: str) -> None:
    module, call_spans = TRACERS[tracer]
    if not is_installed(module):
        pytest.skip(f"needs {module}")
    found = run(tracer)
    for framework in FRAMEWORKS:
        spans, calls = found[framework]["spans"], found[framework]["calls"]
        names = Counter(span["name"] for span in spans)
        assert {names[name] for name in call_spans} == {len(calls)}
        assert 1 <= names[SHARED] <= len(calls)
        expect_own_traces(spans)
        links = sum(span["links"] for span in spans if span["name"] == SHARED)
        lone_calls = len(calls) - names[SHARED]  # each in its caller's own trace
        assert links == 64 - lone_calls


def expect_own_traces(spans: list[dict[str, Any]]) -> None:
    """Check that a user's trace has no text of another's, and a shared call's no user."""
    traces = dict[str, list[dict[str, Any]]]()
    for span in spans:
        traces.setdefault(span["trace"], []).append(span)
    own = {span["name"]: trace for trace in traces.values() for span in trace}
    for number in range(64):
        said = " ".join(span["said"] for span in own[f"user {number}"])
        foreign = [other for other in range(64) if other != number and f"user {other} asks" in said]
        assert foreign == []
    for trace in traces.values():
        names = {span["name"] for span in trace}
        assert SHARED not in names or not any(name.startswith("user") for name in names)
