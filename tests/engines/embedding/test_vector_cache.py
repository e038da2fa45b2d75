"""Vectors of texts that come again are kept, bounded, by tenant, and only for one model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rag_accel.engine_api import EngineRequest, PrimitiveKind, StepBudget, TextBatch, WorkId
from rag_accel.engines import CallableEmbeddingEngine, SentenceTransformerEngine
from rag_accel.engines.embedding.vector_cache import VectorCache, always_same

TEXTS = ("Ada -> wrote to -> Charles", "Charles -> designed -> the engine", "short")


def embedded(engine: Any, texts: tuple[str, ...], namespace: str = "", keep: bool = True) -> Any:
    batch = TextBatch(texts, "document", keep=keep)
    engine.submit([EngineRequest(WorkId("w"), "w", PrimitiveKind.EMBEDDING, batch, namespace)])
    while True:
        for output in engine.step(StepBudget()):
            assert output.error is None
            return output.value


class Counted:
    """Vectors of a text's length, and the texts that were asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, texts: list[str]) -> np.ndarray:
        self.asked += texts
        return np.array([[len(text), 1.0] for text in texts], np.float32)


@pytest.fixture
def counted() -> Counted:
    return Counted()


def pure(counted: Counted, **options: Any) -> CallableEmbeddingEngine:
    return CallableEmbeddingEngine(counted, pure=True, **options)


def test_only_texts_that_are_new_are_embedded(counted: Counted) -> None:
    engine = pure(counted)
    embedded(engine, ("a", "bb"))
    vectors = embedded(engine, ("ccc", "bb", "a", "ccc"))
    assert counted.asked == ["a", "bb", "ccc", "ccc"]
    assert vectors[:, 0].tolist() == [3, 2, 1, 3]
    assert engine.counts["kept_vector_hits"] == 2


def test_all_texts_known_need_no_call(counted: Counted) -> None:
    engine = pure(counted)
    first, again = (embedded(engine, ("a", "bb")) for _ in range(2))
    assert np.array_equal(first, again)
    assert counted.asked == ["a", "bb"]


def test_a_result_is_the_callers_to_change(counted: Counted) -> None:
    engine = pure(counted)
    embedded(engine, ("a",))[:] = 9
    embedded(engine, ("a",))[:] = 9
    assert embedded(engine, ("a",)).tolist() == [[1, 1]]


def test_work_that_does_not_ask_for_it_keeps_nothing(counted: Counted) -> None:
    engine = pure(counted)
    embedded(engine, ("a",), keep=False)
    assert embedded(engine, ("a",)).tolist() == [[1, 1]]
    assert counted.asked == ["a", "a"]


def test_vectors_never_cross_tenants(counted: Counted) -> None:
    engine = pure(counted)
    embedded(engine, ("a",), "one")
    embedded(engine, ("a",), "other")
    assert counted.asked == ["a", "a"]


def test_no_texts_have_no_vectors(counted: Counted) -> None:
    engine = pure(counted)
    embedded(engine, ("a",))
    assert embedded(engine, ()).shape == (0, 2)


def test_an_embedder_that_may_change_keeps_nothing(counted: Counted) -> None:
    engine = CallableEmbeddingEngine(counted)
    embedded(engine, ("a",))
    embedded(engine, ("a",))
    assert counted.asked == ["a", "a"]
    assert engine.counts == {}


def test_the_least_recently_used_go_first(counted: Counted) -> None:
    engine = pure(counted, kept_bytes=1000)  # room for two or three
    for texts in (("a",), ("b",), ("a",), ("c",), ("d",), ("a",)):
        embedded(engine, texts)
    embedded(engine, ("b",))
    assert counted.asked.count("b") == 2
    assert 0 < engine.counts["kept_vector_bytes"] <= 1000


def test_nothing_is_kept_without_memory(counted: Counted) -> None:
    engine = pure(counted, kept_bytes=0)
    embedded(engine, ("a",))
    embedded(engine, ("a",))
    assert (counted.asked, engine.counts["kept_vector_bytes"]) == (["a", "a"], 0)


def test_what_was_computed_by_a_model_that_is_gone_is_not_kept() -> None:
    state = [0]

    def watch() -> Any:
        then = state[0]
        return lambda: state[0] == then

    kept = VectorCache(10_000, watch)
    keys = (("", "document", "a"),)
    known = kept.look_up(keys)
    state[0] += 1
    kept.keep(known, [np.ones(2, np.float32)])
    assert kept.look_up(keys).missing == (0,)


def test_kept_vectors_are_forgotten_when_all_is() -> None:
    kept = VectorCache(10_000, always_same)
    keys = (("", "document", "a"),)
    kept.keep(kept.look_up(keys), [np.ones(2, np.float32)])
    kept.clear()
    assert kept.look_up(keys).missing == (0,)
    assert kept.counts["kept_vector_bytes"] == 0


def test_kept_vectors_equal_plain_embedding_of_each_text(model: Any) -> None:
    engine = SentenceTransformerEngine(model, runtime="torch")
    plain = np.stack([model.encode(text) for text in TEXTS])
    for texts in (TEXTS[:2], TEXTS, TEXTS):
        found = embedded(engine, texts)
        np.testing.assert_allclose(found, plain[: len(texts)], atol=1e-6)
    assert engine.counts["kept_vector_hits"] == 5


def replace_a_letter(model: Any) -> None:
    normalizers = pytest.importorskip("tokenizers").normalizers
    model.tokenizer.backend_tokenizer.normalizer = normalizers.Replace("e", "x")


@pytest.mark.parametrize(
    "change",
    [
        lambda model: next(model.parameters()).detach().mul_(2),
        lambda model: model.prompts.update(document="about: "),
        lambda model: setattr(model, "truncate_dim", 4),
        lambda model: setattr(model, "max_seq_length", 4),
        replace_a_letter,
    ],
    ids=["weights", "prompts", "dimension", "length", "normaliser"],
)
def test_kept_vectors_are_forgotten_when_the_model_changes(model: Any, change: Any) -> None:
    engine = SentenceTransformerEngine(model, runtime="torch")
    embedded(engine, TEXTS)
    change(model)
    found = embedded(engine, TEXTS)
    np.testing.assert_allclose(found, model.encode(list(TEXTS)), atol=1e-6)
    assert engine.counts["kept_vector_hits"] == 0
