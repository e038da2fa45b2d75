"""Let the tests of this room share a fake of vLLM, and a model's folder without weights.

The folder is not named as the package: the one above it is on the path, and would hide it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import tiny_chat
from fake_runner import tokenizer
from fake_vllm import FakeVllm, fake_library

from rag_accel.engines import VllmEngine, VllmOptions


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a model's configuration and tokenizer."""
    made = tmp_path_factory.mktemp("model")
    tiny_chat.model().config.save_pretrained(made)
    tokenizer().save_pretrained(made)
    return made


@pytest.fixture
def vllm() -> FakeVllm:
    """Return what the fake engine is told and has seen."""
    return FakeVllm()


@pytest.fixture
def make(folder: Path, vllm: FakeVllm) -> Iterator[Any]:
    """Yield a maker of engines over the fake, closed after the test."""
    made: list[VllmEngine] = []

    def engine(**bounds: Any) -> VllmEngine:
        options = VllmOptions(**bounds)
        made.append(VllmEngine(folder, options=options, library=fake_library(vllm)))
        return made[-1]

    yield engine
    for one in made:
        one.close()
