"""Engines over one folder of retrieved texts, for tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import chunk_prompts
import pytest
from chunk_prompts import asked
from fake_runner import tokenizer
from tiny_chat import model

from rag_accel.engine_api import (
    GenerationOutput,
)
from rag_accel.engines.llm.local.engine import LocalLLMEngine
from rag_accel.engines.llm.local.model.loading import load
from rag_accel.engines.llm.local.options import LocalOptions

TEXTS = ("The height of Mount Fuji is 3776 metres.", "A lane holds keys and values.")
Make = Callable[..., LocalLLMEngine]


def engine_over(folder: Path, source: Any = None, clock: Any = None, **options: Any) -> Any:
    """Return an engine that reuses texts of a folder."""
    loaded = load(source or model(), tokenizer(), pool_bytes=1 << 24)
    chosen = {"kv_reuse": "full", "kv_folder": str(folder), **options}
    return LocalLLMEngine(
        loaded.runner, loaded.tokenizer, eos=(), options=LocalOptions(**chosen), clock=clock
    )


def reused(output: GenerationOutput) -> int:
    """Return how many tokens of texts were not computed."""
    assert output.use is not None
    return output.use.from_chunks


def answer(engine: LocalLLMEngine, *texts: str, **fields: Any) -> GenerationOutput:
    """Return what an engine answers to a prompt with texts."""
    return chunk_prompts.answer(engine, asked("one", *texts, **fields))


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Return a function that makes an engine over one folder; all are closed at the end."""
    made: list[LocalLLMEngine] = []

    def engine(*given: Any, **options: Any) -> LocalLLMEngine:
        made.append(engine_over(tmp_path / "kept", *given, **options))
        return made[-1]

    yield engine
    for one in made:
        one.close()
