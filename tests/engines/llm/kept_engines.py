"""Engines over one folder of retrieved texts, for tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fake_runner import finish, tokenizer, value
from tiny_chat import model

from rag_accel.engine_api import (
    ChunkSpan,
    EngineRequest,
    GenerationInput,
    GenerationOutput,
    Message,
    PrimitiveKind,
    WorkId,
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


def asked(id: str, *texts: str, **fields: Any) -> EngineRequest:
    """Return work whose prompt holds texts and a question."""
    content = "\n\n".join(texts) + "\n\nHow high is it?"
    places = [content.index(text) for text in texts]
    passages = [ChunkSpan(0, at, at + len(text)) for at, text in zip(places, texts, strict=True)]
    payload = GenerationInput(
        (Message("user", content),), max_tokens=6, chunk_spans=tuple(passages)
    )
    return EngineRequest(WorkId(id), id, PrimitiveKind.DECODING, payload, **fields)


def answer(engine: LocalLLMEngine, *texts: str, **fields: Any) -> GenerationOutput:
    """Return what an engine answers to a prompt with texts."""
    engine.submit([asked("one", *texts, **fields)])
    return value(finish(engine, "one"), "one")


def reused(output: GenerationOutput) -> int:
    """Return how many tokens of texts were not computed."""
    assert output.use is not None
    return output.use.from_chunks


def tokens(*texts: str) -> int:
    """Return how many tokens texts have."""
    return sum(len(tokenizer()(one, add_special_tokens=False)["input_ids"]) for one in texts)
