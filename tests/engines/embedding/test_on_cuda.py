"""Embeddings and reranking on a CUDA device equal what the models themselves give there."""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_kit import needs_cuda, torch, unchanged_switches

from rag_accel.engine_api import (
    Document,
    Engine,
    EngineRequest,
    PrimitiveKind,
    RerankBatch,
    StepBudget,
    TextBatch,
    WorkId,
)
from rag_accel.engines import RerankEngine, SentenceTransformerEngine
from rag_accel.engines.rerank.max_sim import MaxSimScorer

sys.path.append(str(Path(__file__).parents[2]))

from tiny_cross_encoder import WORDS, save_cross_encoder

pytestmark = needs_cuda

TEXTS = [f"text number {at} " + "a word of many " * (at * 7 % 60) for at in range(150)]
#: Of vectors of length 1, on one device, computed with other neighbours and another padding.
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def model(minilm: Any) -> Any:
    """Give the packaged model on the device; who changes it takes a copy."""
    return copy.deepcopy(minilm).to("cuda")


def outcome(engine: Engine, work: EngineRequest) -> Any:
    engine.submit([work])
    for _ in range(100):
        for output in engine.step(StepBudget()):
            assert output.kind == "final", output.error
            return output.value
    raise AssertionError("nothing ended")


def embedded(engine: Engine, texts: Sequence[str], role: Any = "document") -> Any:
    batch = TextBatch(tuple(texts), role, keep=True)
    return outcome(engine, EngineRequest(WorkId("w"), "r", PrimitiveKind.EMBEDDING, batch))


def near(found: Any, expected: Any, most: float = TOLERANCE) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=0, atol=most)


def test_vectors_are_those_of_encode_on_the_same_device(model: Any) -> None:
    expected = model.encode(TEXTS)
    with unchanged_switches():
        engine = SentenceTransformerEngine(model)
        try:
            near(embedded(engine, TEXTS), expected)
            assert engine.profile.max_threads == 0
        finally:
            engine.close()


def test_a_model_is_loaded_to_the_device_that_is_named(model: Any) -> None:
    engine = SentenceTransformerEngine(device="cuda")
    try:
        assert engine.model.device.type == "cuda"
        near(embedded(engine, TEXTS[:9]), model.encode(TEXTS[:9]))
    finally:
        engine.close()


def test_arguments_of_encode_apply_there(model: Any) -> None:
    named = {"prompt": "query: ", "truncate_dim": 100, "normalize_embeddings": True}
    engine = SentenceTransformerEngine(model, query_kwargs=named)
    try:
        near(embedded(engine, TEXTS[:40], "query"), model.encode(TEXTS[:40], **named))
    finally:
        engine.close()


def test_reproducible_vectors_do_not_depend_on_the_other_texts(model: Any) -> None:
    engine = SentenceTransformerEngine(model, reproducible=True)
    try:
        together = embedded(engine, TEXTS[:30])
        alone = np.concatenate([embedded(engine, [text]) for text in TEXTS[:30]])
    finally:
        engine.close()
    np.testing.assert_array_equal(together, alone)


def test_weights_written_on_the_device_are_those_of_the_next_vectors(model: Any) -> None:
    own = copy.deepcopy(model)
    engine = SentenceTransformerEngine(own, kept_bytes=1 << 20)
    try:
        before = embedded(engine, TEXTS[:5])
        with torch.no_grad():
            for weight in own.parameters():
                weight.mul_(0.9)
        found = embedded(engine, TEXTS[:5])
        near(found, own.encode(TEXTS[:5]))
    finally:
        engine.close()
    assert np.abs(found - before).max() > 1e-3


def test_a_model_that_moves_to_another_device_is_computed_there(model: Any) -> None:
    own = copy.deepcopy(model)
    engine = SentenceTransformerEngine(own, runtime="torch")
    try:
        expected = embedded(engine, TEXTS[:20])
        for device in ("cpu", "cuda"):
            own.to(device)
            near(embedded(engine, TEXTS[:20]), expected, 1e-5)
    finally:
        engine.close()


@pytest.mark.parametrize("runtime", ["auto", "torch", "bf16", "int8"])
def test_no_runtime_of_processors_takes_a_model_of_the_device(model: Any, runtime: Any) -> None:
    engine = SentenceTransformerEngine(model, runtime=runtime)
    try:
        near(embedded(engine, TEXTS[:20]), model.encode(TEXTS[:20]))
    finally:
        engine.close()


# Reranking.


def ranked(scorer: Any, query: str, texts: Sequence[str]) -> list[tuple[str, float]]:
    engine = RerankEngine(scorer)
    documents = tuple(Document(str(at), text) for at, text in enumerate(texts))
    batch = RerankBatch(query, documents, None)
    work = EngineRequest(WorkId("w"), "r", PrimitiveKind.RERANKING, batch)
    try:
        return [(one.document.id, one.score) for one in outcome(engine, work)]
    finally:
        engine.close()


def test_late_interaction_orders_as_on_the_processor(model: Any, minilm: Any) -> None:
    query = "which text has many words"
    found = ranked(MaxSimScorer(model), query, TEXTS[:40])
    expected = ranked(
        MaxSimScorer(copy.deepcopy(minilm).to("cpu"), runtime="torch"), query, TEXTS[:40]
    )
    near(
        [dict(found)[str(at)] for at in range(40)],
        [dict(expected)[str(at)] for at in range(40)],
        1e-5,
    )
    assert found == sorted(found, key=lambda one: -one[1])


def test_a_cross_encoder_scores_as_its_own_predict(tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder

    encoder = CrossEncoder(save_cross_encoder(tmp_path / "model"), device="cuda")
    texts = [" ".join(WORDS[at % 50 : at % 50 + 1 + at % 9]) for at in range(40)]
    expected = encoder.predict([("word1 word2", text) for text in texts], show_progress_bar=False)
    found = dict(ranked(encoder.predict, "word1 word2", texts))
    near([found[str(at)] for at in range(40)], expected, 1e-5)
