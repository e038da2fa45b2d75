"""Give the suites something small to run on."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore

from bench import command
from bench.results import Row, SuiteResult, over_processes
from rag_accel.engine_api import Document
from rag_accel_demo.material import Material

# Idle OpenMP threads spin for work by default: where other processes need the cores, small calls
# of FAISS wait for them and take ten times as long. It is read when FAISS or torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

sys.path.append(str(Path(__file__).parents[1] / "engines" / "llm"))  # tiny language models

TEXTS = {
    "sea": "The sea is salty because rivers carry minerals into it.",
    "sky": "The sky is blue because air scatters short waves most.",
    "sun": "The sun shines because hydrogen fuses in its core.",
    "ice": "Ice floats because it is less dense than liquid water.",
    "fog": "Fog forms when moist air cools near the ground.",
}


@pytest.fixture(scope="module")
def loop_of_the_thread() -> Iterator[None]:
    """Close the loop that LlamaIndex's sync methods leave, before it is collected elsewhere."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    gc.collect()
    loop.close()
    asyncio.set_event_loop(None)


@pytest.fixture(scope="module")
def material() -> Material:
    """Return five documents, four questions and a store of made-up vectors."""
    embeddings = DeterministicFakeEmbedding(size=8)
    store = InMemoryVectorStore(embeddings)
    store.add_texts(list(TEXTS.values()), [{"id": name} for name in TEXTS], ids=list(TEXTS))
    return Material(
        documents=tuple(Document(name, text) for name, text in TEXTS.items()),
        questions=("Why is the sea salty?", "Why does ice float?", "Why blue?", "When is fog?"),
        skipped=(),
        embeddings=embeddings,
        store=store,
        index_was_cached=True,
    )


Ended = Callable[[SuiteResult], int]
"""Tells how ``python -m bench`` ends where a suite finds this."""


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ended:
    """Return the exit code of the command; a result is on disk if and only if that is 0."""
    for name in ("HF_HUB_OFFLINE", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, "1")  # the command sets them where they are missing

    def end(found: SuiteResult) -> int:
        suite = SimpleNamespace(run=lambda quick: found)
        monkeypatch.setattr(command, "load_suite", lambda _: suite)
        path = tmp_path / "ended.json"
        code = command.main([found.suite, "--json", str(path)])
        assert path.exists() is (code == 0)
        return code

    return end


@pytest.fixture
def result() -> SuiteResult:
    """Return a result with two systems, two metrics and a row without a 99th percentile."""
    return SuiteResult(
        suite="sample",
        rows=(
            Row("plain", "64 users", "latency_ms", 12.5, 40.0, 256),
            Row("accelerated", "64 users", "latency_ms", 6.25, 20.0, 256),
            Row("plain", "64 users", "answers_per_s", 80.0, None, 5),
            Row("accelerated", "64 users", "answers_per_s", 160.0, None, 5),
        ),
        ratios={"sample_p99_64": 0.5, "sample_throughput_64": 2.0},
        environment={
            **{"python": "3.11.9", "cpu": "A processor", "cores": 2, "quick": True},
            **{"load_average": [0.1, 0.2, 0.3], "date": "2026-01-01T00:00:00+00:00"},
        },
    )


@pytest.fixture
def of_three(result: SuiteResult) -> SuiteResult:
    """Return what three processes found, whose throughput differs."""
    return over_processes(
        [
            replace(result, ratios={"sample_p99_64": 0.5, "sample_throughput_64": throughput})
            for throughput in (2.0, 1.5, 4.0)
        ]
    )
