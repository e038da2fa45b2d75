"""Prompts of three texts in any order, and engines that reuse them."""

from __future__ import annotations

from typing import Any

from fake_runner import finish, tokenizer, value

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
from rag_accel.engines.llm.local.options import LocalOptions

SYSTEM = "Answer by the documents."
A, B, C = (
    "The height of Mount Fuji is 3776 metres.",
    "A lane holds keys and values of one sequence.",
    "The guide said which of the documents it is.",
)
QUESTION = "\n\nHow high is it?"


def make(runner: Any, **options: Any) -> LocalLLMEngine:
    chosen = LocalOptions(**{"kv_reuse": "full", **options})
    return LocalLLMEngine(runner, tokenizer(), options=chosen)


def asked(id: str, *texts: str, question: str = QUESTION, **fields: Any) -> EngineRequest:
    """Return work whose prompt has these texts, with blank lines between, and then a question."""
    content = "\n\n".join(texts) + question
    passages: list[ChunkSpan] = []
    at = 0
    for text in texts:
        passages.append(ChunkSpan(1, at, at + len(text), text[:5]))
        at += len(text) + 2
    payload = GenerationInput(
        (Message("system", SYSTEM), Message("user", content)),
        max_tokens=6,
        chunk_spans=tuple(passages),
    )
    return EngineRequest(WorkId(id), id, PrimitiveKind.DECODING, payload, **fields)


def answer(engine: LocalLLMEngine, work: EngineRequest) -> GenerationOutput:
    engine.submit([work])
    return value(finish(engine, str(work.id)), str(work.id))


def tokens(*texts: str) -> int:
    return sum(len(tokenizer()(text, add_special_tokens=False)["input_ids"]) for text in texts)


ALL = tokens(A) + tokens(B) + tokens(C)
