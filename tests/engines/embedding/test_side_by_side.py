"""A large step on several threads computes micro-batches side by side, with the same results."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from watched_model import watched

from rag_accel.engine_api import (
    EngineOutput,
    EngineRequest,
    PrimitiveKind,
    StepBudget,
    TextBatch,
    WorkId,
)
from rag_accel.engines.embedding.engine import SentenceTransformerEngine

TOLERANCE = 1e-6
WORDS = ["retrieval", "cluster", "query", "graph", "stage", "latency", "vector", "batch", "token"]
MANY = [" ".join(WORDS * (1 + number % 9)) for number in range(60)]
LONG = "word " * 400


def work(name: str, *items: str) -> EngineRequest:
    return EngineRequest(
        WorkId(name), name, PrimitiveKind.EMBEDDING, TextBatch(items, role="document")
    )


def engine_on_two(model: Any, **options: Any) -> SentenceTransformerEngine:
    return SentenceTransformerEngine(model, max_threads=2, **options)


def ended(
    engine: SentenceTransformerEngine, requests: list[EngineRequest], time_s: float | None = None
) -> tuple[dict[str, EngineOutput], int]:
    """Return what became of the requests, and after how many steps."""
    engine.submit(requests)
    outputs: dict[str, EngineOutput] = {}
    steps = 0
    while len(outputs) < len(requests):
        found = engine.step(StepBudget(time_s=time_s, threads=2))
        outputs |= {str(output.id): output for output in found}
        steps += 1
    return outputs, steps


def test_many_texts_are_computed_by_several_threads_and_are_those_of_encode(minilm: Any) -> None:
    with watched(minilm) as idents:
        outputs, _ = ended(engine_on_two(minilm), [work("a", *MANY)])
    assert len(idents) == 2
    np.testing.assert_allclose(outputs["a"].value, minilm.encode(MANY), atol=TOLERANCE)


def test_few_texts_stay_in_the_worker(minilm: Any) -> None:
    with watched(minilm) as idents:
        ended(engine_on_two(minilm), [work("a", *MANY[:4])])
    assert idents == {threading.get_ident()}


def test_reproducible_vectors_are_made_in_the_worker_alone(minilm: Any) -> None:
    with watched(minilm) as idents:
        ended(engine_on_two(minilm, reproducible=True), [work("a", *MANY)])
    assert idents == {threading.get_ident()}


def test_a_model_that_is_not_known_to_bear_it_is_run_by_one_thread(
    minilm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = minilm.encode
    monkeypatch.setattr(minilm, "encode", lambda *args, **kwargs: encode(*args, **kwargs))
    with watched(minilm) as idents:
        ended(engine_on_two(minilm), [work("a", *MANY)])
    assert idents == {threading.get_ident()}


@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
def test_a_model_with_a_hook_is_run_by_one_thread(minilm: Any, register: str) -> None:
    idents: set[int] = set()
    hook = getattr(minilm[0], register)(lambda *_: idents.add(threading.get_ident()))
    try:
        ended(engine_on_two(minilm), [work("a", *MANY)])
    finally:
        hook.remove()
    assert idents == {threading.get_ident()}


def test_what_makes_the_model_raise_fails_alone(minilm: Any) -> None:
    requests = [work("a", *MANY[:30]), work("bad", "short", LONG), work("b", *MANY[30:])]
    with watched(minilm, fails_from=200) as idents:
        outputs, _ = ended(engine_on_two(minilm), requests)
    assert len(idents) == 2
    assert isinstance(outputs["bad"].error, MemoryError)
    for name, texts in (("a", MANY[:30]), ("b", MANY[30:])):
        np.testing.assert_allclose(outputs[name].value, minilm.encode(texts), atol=TOLERANCE)


def test_what_a_step_has_no_time_for_is_computed_by_the_next(minilm: Any) -> None:
    outputs, steps = ended(engine_on_two(minilm), [work("a", *MANY)], time_s=0.0)
    assert steps > 1
    np.testing.assert_allclose(outputs["a"].value, minilm.encode(MANY), atol=TOLERANCE)
