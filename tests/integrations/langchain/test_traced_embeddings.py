"""Embeddings on a server share calls under tracers, whose traces stay each user's own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import embeddings_server
import pytest

PROGRAM = Path(__file__).with_name("traced_program.py")
PATIENCE_S = 120
#: what a tracer needs
MODULES = {
    "ddtrace": "ddtrace",
    "httpx": "opentelemetry.instrumentation.httpx",
    "langfuse": "langfuse",
    "openinference": "openinference.instrumentation.openai",
    "sentry": "sentry_sdk",
}


def run(*arguments: str) -> dict[str, Any]:
    """Run the program in a process of its own: a tracer is never switched off again."""
    paths = [str(Path(embeddings_server.__file__).parent), os.environ.get("PYTHONPATH", "")]
    ran = subprocess.run(
        [sys.executable, str(PROGRAM), *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


def has(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize("arguments", [("headers",), ("http_client",)], ids=lambda given: given[0])
def test_a_gateways_settings_do_not_keep_calls_apart(arguments: tuple[str, ...]) -> None:
    found = run("none", *arguments)
    assert found["equal"]
    assert len(found["calls"]) <= 4


@pytest.mark.parametrize("tracer", MODULES)
def test_calls_are_shared_and_traces_are_each_users_own(tracer: str) -> None:
    if not has(MODULES[tracer]):
        pytest.skip(f"needs {MODULES[tracer]}")
    found = run(tracer)
    assert found["equal"]
    assert len(found["calls"]) <= 4
    assert "share its calls" in found["explain"]
    traces = dict[str, list[dict[str, Any]]]()
    for span in found["spans"]:
        traces.setdefault(span["trace"], []).append(span)
    own = {span["name"]: spans for spans in traces.values() for span in spans}
    for number in range(64):
        said = " ".join(span["said"] for span in own[f"user {number}"])
        foreign = [other for other in range(64) if other != number and f"user {other} asks" in said]
        assert foreign == []
    names = Counter(span["name"] for span in found["spans"])
    shared = [spans for spans in traces.values() if spans[0] in own["rag_accel.shared_embeddings"]]
    assert 1 <= names["rag_accel.shared_embeddings"] <= len(found["calls"]) <= 4
    assert all(not span["name"].startswith("user") for spans in shared for span in spans)
    links = [s["links"] for s in found["spans"] if s["name"] == "rag_accel.shared_embeddings"]
    alone = sum(len(texts) == 1 for texts in found["calls"])
    assert sum(links) == 64 - alone
