"""Give each test an accelerator that raises its own errors and must be empty when it is over."""

from __future__ import annotations

import gc
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from idle_accelerators import soon_idle

from rag_accel import Accelerator
from rag_accel.accelerator import shutdown
from rag_accel.interception.patches import patches

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[2] / "engines" / "retrieval"))  # how to interrupt
sys.path.append(str(Path(__file__).parents[2] / "engines" / "llm"))  # how to serve
sys.path.append(str(Path(__file__).parents[2] / "engines" / "knowledge" / "bolt"))  # how to cut

from lc_waiting import wait_until

_PASSED = pytest.StashKey[bool]()


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    """Give a strict accelerator; afterwards nothing lives in it and nothing was bypassed."""
    with Accelerator(strict=True) as made:
        yield made
        assert soon_idle(made)
        assert made.bypassed == {}
        assert made._driver.internal_errors == 0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Note in the test itself whether it passed, for fixtures that end after it."""
    report = yield
    if report.when == "call":
        item.stash[_PASSED] = report.passed
    return report


@pytest.fixture(autouse=True)
def nothing_stays(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check that a test leaves no class patched."""
    yield
    request.node.funcargs.clear()  # pytest holds what fixtures gave until later
    if request.node.stash.get(_PASSED, False) and patches.patched():
        wait_until(lambda: _collected() == [], "restored classes")


def _collected() -> list[Any]:
    gc.collect()
    return patches.patched()


@pytest.fixture(autouse=True)
def conversions_are_kept(request: pytest.FixtureRequest) -> None:
    """Convert each model once in this process, where models can be compiled at all."""
    if "rag_accel.engines.embedding.compiled_model" in sys.modules:
        request.getfixturevalue("kept_conversions")


@pytest.fixture(scope="session", autouse=True)
def default_accelerator_closed() -> Iterator[None]:
    """Close the process default when the session ends."""
    yield
    shutdown()


@pytest.fixture(scope="session")
def embeddings() -> Any:
    """Give the packaged model, loaded once."""
    from langchain_rag_accel import RagAccelEmbeddings

    made = RagAccelEmbeddings()
    _keep_what_is_there()
    return made


def _keep_what_is_there() -> None:
    gc.collect()
    gc.freeze()
