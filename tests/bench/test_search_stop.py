"""The rows of the early stop and of the orders, on small material."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.search_stop import Material, Sizes, make_material, stop_and_order_rows
from rag_accel.engines.retrieval.vectors.spec import Vectors

SIZES = Sizes(passages=3000, words=4, clusters=50, nprobe=30, questions=200)


def drawn(count: int, seed: int) -> Vectors:
    random = np.random.default_rng(seed)
    centres = np.random.default_rng(0).standard_normal((50, 16))
    vectors = centres[random.integers(0, 50, count)] + random.normal(0, 0.5, (count, 16))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def material() -> Material:
    return Material(drawn(SIZES.passages, 1), drawn(2 * SIZES.questions, 2), drawn(200, 3))


def test_an_order_that_knows_the_answer_finds_it_sooner() -> None:
    known = material()
    again = Material(known.passages, known.questions, known.questions[SIZES.questions :])
    rows = {row.metric: row.median for row in stop_and_order_rows(again, SIZES)}
    assert rows["order_paper"] < rows["order_centroid"]


def test_material_is_made_once_for_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class CountingModel:
        made = 0

        def __init__(self, *_: object, **__: object) -> None:
            CountingModel.made += 1

        def encode(self, texts: list[str], **_: object) -> Vectors:
            assert len(texts) == len(set(texts))
            return drawn(len(texts), len(texts))

    monkeypatch.setattr("sentence_transformers.SentenceTransformer", CountingModel)
    sizes = Sizes(passages=300, words=10, clusters=5, nprobe=5, questions=20)
    first, second = make_material(sizes, tmp_path), make_material(sizes, tmp_path)
    assert CountingModel.made == 1
    assert (len(first.passages), len(first.questions), len(first.followed)) == (300, 40, 20)
    assert np.array_equal(first.followed, second.followed)
