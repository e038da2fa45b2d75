"""Make work for LLM engines, drive them to its end, and wait for what other threads do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from rag_accel.engine_api import (
    Engine,
    EngineOutput,
    EngineRequest,
    GenerationInput,
    Message,
    PrimitiveKind,
    StepBudget,
    WorkId,
)
from rag_accel.engines.llm.remote.engine import OpenAICompatibleEngine
from rag_accel.errors import RemoteEngineError

QUESTION = Message("user", "what is rag")

PATIENCE_S = 20.0
"""How long a test waits for what has to happen; never how long something may take."""

MakeEngine = Callable[..., OpenAICompatibleEngine]


def work(
    id: str = "a",
    *messages: Message,
    kind: PrimitiveKind = PrimitiveKind.DECODING,
    max_tokens: int | None = 4,
    **fields: Any,
) -> EngineRequest:
    """Return a request, by default to answer three words with four."""
    payload = GenerationInput(messages or (QUESTION,), max_tokens=max_tokens)
    return EngineRequest(WorkId(id), "r", kind, payload, **fields)


def finish(engine: Engine, *ids: str) -> list[EngineOutput]:
    """Step until all of these ids have ended and return every output."""
    left, outputs = set(ids), []
    for _ in range(1000):  # a step may also return without outputs
        batch = engine.step(StepBudget(time_s=10.0))
        outputs.extend(batch)
        left -= {output.id for output in batch if output.kind in ("final", "error")}
        if not left:
            return outputs
    raise AssertionError(f"still at work: {left}")


def run(engine: Engine, request: EngineRequest) -> EngineOutput:
    """Submit one request and return its last output."""
    engine.submit([request])
    return finish(engine, request.id)[-1]


def error_of(output: EngineOutput) -> RemoteEngineError:
    """Return the error with which work has ended."""
    assert output.kind == "error"
    assert isinstance(output.error, RemoteEngineError)
    return output.error


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until another thread makes the condition true."""
    signal = threading.Event()
    for _ in range(2000):
        if condition():
            return
        signal.wait(0.002)
    raise AssertionError("the condition never held")


class Naps:
    """Note the pauses between attempts without sleeping."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
