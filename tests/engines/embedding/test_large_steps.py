"""Work of several micro-batches gives the model's own vectors, on torch and compiled alike."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

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
PATIENCE_S = 60.0
WORDS = ["retrieval", "cluster", "query", "graph", "stage", "latency", "vector", "batch", "token"]
MANY = [" ".join(WORDS * (1 + number % 9)) for number in range(60)]
LONG = "word " * 400


def work(name: str, *items: str) -> EngineRequest:
    return EngineRequest(
        WorkId(name), name, PrimitiveKind.EMBEDDING, TextBatch(items, role="document")
    )


@pytest.fixture(params=["torch", "compiled"])
def engine(request: pytest.FixtureRequest, small_model: Any) -> Iterator[SentenceTransformerEngine]:
    if request.param == "torch":
        made = SentenceTransformerEngine(small_model, max_threads=2, runtime="torch")
    else:
        pytest.importorskip("openvino")
        made = SentenceTransformerEngine(copy.deepcopy(small_model), max_threads=2)
        ended(made, [work("first", "one")])
        assert made.runtime is not None
        made.runtime.wait(PATIENCE_S)
        assert made.runtime.state == "ready", made.runtime.reason
    yield made
    made.close()


def ended(
    engine: SentenceTransformerEngine,
    requests: list[EngineRequest],
    time_s: float | None = None,
    threads: int = 2,
) -> tuple[dict[str, EngineOutput], int]:
    """Return what became of the requests, and after how many steps."""
    engine.submit(requests)
    outputs: dict[str, EngineOutput] = {}
    steps = 0
    while len(outputs) < len(requests):
        found = engine.step(StepBudget(time_s=time_s, threads=threads))
        outputs |= {str(output.id): output for output in found}
        steps += 1
    return outputs, steps


def require_own(engine: SentenceTransformerEngine, output: EngineOutput, texts: list[str]) -> None:
    np.testing.assert_allclose(output.value, engine.model.encode(texts), atol=TOLERANCE)


@pytest.mark.cross_product(keep=3)
@pytest.mark.parametrize("threads", [1, 2, 8])
def test_many_texts_have_the_vectors_of_encode(
    engine: SentenceTransformerEngine, threads: int
) -> None:
    outputs, _ = ended(engine, [work("a", *MANY), work("b", MANY[3])], threads=threads)
    require_own(engine, outputs["a"], MANY)
    require_own(engine, outputs["b"], MANY[3:4])


def test_what_makes_the_model_raise_fails_alone(
    engine: SentenceTransformerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = engine.model[0].model.get_input_embeddings()
    look_up = type(words).forward

    def fail_on_long(module: Any, ids: Any) -> Any:
        if module is words and ids.shape[1] >= 200:
            raise MemoryError("too long")
        return look_up(module, ids)

    monkeypatch.setattr(type(words), "forward", fail_on_long)
    requests = [work("a", *MANY[:30]), work("bad", "short", LONG), work("b", *MANY[30:])]
    outputs, _ = ended(engine, requests)
    assert isinstance(outputs["bad"].error, MemoryError)
    require_own(engine, outputs["a"], MANY[:30])
    require_own(engine, outputs["b"], MANY[30:])


def test_what_a_step_has_no_time_for_is_computed_by_the_next(
    engine: SentenceTransformerEngine,
) -> None:
    outputs, steps = ended(engine, [work("a", *MANY)], time_s=0.0)
    assert steps > 1
    require_own(engine, outputs["a"], MANY)


@pytest.mark.cross_product(keep=4)
@pytest.mark.parametrize("after", range(4))
def test_cancelled_work_gives_nothing_and_leaves_the_others_alone(
    engine: SentenceTransformerEngine, after: int
) -> None:
    engine.submit([work("gone", *MANY), work("stays", *MANY[:20])])
    found: list[EngineOutput] = []
    for _ in range(after):
        found += engine.step(StepBudget(time_s=0.0, threads=2))
    was_over = {str(output.id) for output in found}
    engine.cancel([WorkId("gone")])
    while engine.num_unfinished:
        found += engine.step(StepBudget(threads=2))
    outputs = {str(output.id): output for output in found}
    assert outputs.keys() == {"stays"} | was_over
    require_own(engine, outputs["stays"], MANY[:20])
    later, _ = ended(engine, [work("later", MANY[7])])
    require_own(engine, later["later"], MANY[7:8])


def test_an_engine_may_be_closed_while_it_computes(engine: SentenceTransformerEngine) -> None:
    engine.submit([work("a", *MANY)])
    engine.step(StepBudget(time_s=0.0, threads=2))
    engine.close()
    assert engine.num_unfinished == 0
    again, _ = ended(engine, [work("b", MANY[0])])
    require_own(engine, again["b"], MANY[:1])
