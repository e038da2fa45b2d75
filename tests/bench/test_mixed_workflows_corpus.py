"""Check the corpus that is drawn: the projection, the mixture, the blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.corpus import (
    Floats,
    Mixture,
    Projection,
    corpus_blocks,
    embed,
    kept_vectors,
    unit_rows,
)
from rag_accel.errors import ConfigError


@pytest.fixture(scope="module")
def vectors() -> Floats:
    """Return 900 unit vectors about three far centres, one of them twice as often, on few axes."""
    random = np.random.default_rng(1)
    centres = np.eye(3, 24, dtype=np.float32) * 4
    chosen = centres[random.choice(3, 900, p=[0.5, 0.25, 0.25])]
    spread = random.standard_normal((900, 4)) @ random.standard_normal((4, 24)) * 0.3
    return unit_rows((chosen + spread).astype(np.float32))


def test_a_projection_keeps_inner_products_of_vectors_on_few_axes() -> None:
    random = np.random.default_rng(2)
    low = random.standard_normal((200, 5)) @ random.standard_normal((5, 24))
    rows = unit_rows(low.astype(np.float32))
    reduced = Projection.fit(rows, 5).apply(rows)
    assert reduced.shape == (200, 5)
    assert reduced.dtype == np.float32
    np.testing.assert_allclose(reduced @ reduced.T, rows @ rows.T, atol=1e-5)


def test_a_projection_has_orthonormal_axes_longest_first(vectors: Floats) -> None:
    axes = Projection.fit(vectors, 6).axes
    np.testing.assert_allclose(axes.T @ axes, np.eye(6), atol=1e-5)
    lengths = np.square(vectors @ axes).sum(axis=0)
    assert list(lengths) == sorted(lengths, reverse=True)


def test_too_many_axes_are_an_error(vectors: Floats) -> None:
    with pytest.raises(ConfigError, match="axes"):
        Projection.fit(vectors, 25)


def test_a_mixture_finds_the_groups_and_draws_them_as_often(vectors: Floats) -> None:
    mixture = Mixture.fit(vectors, components=3, rank=4)
    assert sorted(len(group) for group in mixture.members) == pytest.approx([225, 225, 450], abs=50)
    drawn, sources = mixture.draw(6000, np.random.default_rng(3))
    shares = [np.isin(sources, group).mean() for group in mixture.members]
    assert shares == pytest.approx(mixture.weights, abs=0.03)
    for group in mixture.members:
        of_group = drawn[np.isin(sources, group)]
        np.testing.assert_allclose(of_group.mean(axis=0), vectors[group].mean(axis=0), atol=0.05)


def test_draws_spread_like_what_was_fitted(vectors: Floats) -> None:
    mixture = Mixture.fit(vectors, components=3, rank=4)
    drawn, _ = mixture.draw(6000, np.random.default_rng(3))
    np.testing.assert_allclose(np.cov(drawn.T), np.cov(vectors.T), atol=0.03)
    np.testing.assert_allclose(np.linalg.norm(drawn, axis=1), 1.0, rtol=1e-5)


def test_noise_takes_the_variance_that_no_axis_takes(vectors: Floats) -> None:
    axes_and_noise = Mixture.fit(vectors, components=1, rank=4)
    (axes,), (noise,) = axes_and_noise.axes, axes_and_noise.noise
    modelled = axes.T @ axes + noise**2 * np.eye(24)
    assert np.trace(modelled) == pytest.approx(np.trace(np.cov(vectors.T, bias=True)), rel=1e-4)


def test_a_component_of_one_vector_draws_that_vector() -> None:
    one = unit_rows(np.arange(1, 9, dtype=np.float32)[None, :])
    drawn, sources = Mixture.fit(one, 1, rank=2).draw(5, np.random.default_rng(0))
    np.testing.assert_allclose(drawn, np.repeat(one, 5, axis=0), atol=1e-6)
    assert sources.tolist() == [0] * 5


@pytest.mark.parametrize(("components", "rank"), [(0, 4), (901, 4), (3, 24)])
def test_a_mixture_that_cannot_be_fitted_is_an_error(
    vectors: Floats, components: int, rank: int
) -> None:
    with pytest.raises(ConfigError, match="cannot be fitted"):
        Mixture.fit(vectors, components, rank)


def test_real_vectors_come_first_and_a_corpus_begins_every_larger_one(
    vectors: Floats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.corpus.BLOCK", 400)
    mixture = Mixture.fit(vectors, components=3, rank=4)

    def corpus(count: int) -> tuple[Floats, list[int]]:
        blocks = list(corpus_blocks(vectors, mixture, count))
        return np.concatenate([rows for rows, _ in blocks]), [
            number for _, sources in blocks for number in sources.tolist()
        ]

    large, sources = corpus(2000)
    assert large.shape == (2000, 24)
    np.testing.assert_array_equal(large[:900], vectors)
    assert sources[:900] == list(range(900))
    for count in (500, 1100):
        small, of_small = corpus(count)
        np.testing.assert_array_equal(small, large[:count])
        assert of_small == sources[:count]


def test_vectors_of_texts_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, ...]] = []

    def made(texts: list[str]) -> Floats:
        calls.append(tuple(texts))
        return np.eye(len(texts), 3, dtype=np.float32)

    monkeypatch.setattr("bench.corpus.embed", made)
    first = kept_vectors(tmp_path, ["one", "two"])
    np.testing.assert_array_equal(kept_vectors(tmp_path, ["one", "two"]), first)
    kept_vectors(tmp_path, ["two", "one"])
    assert calls == [("one", "two"), ("two", "one")]


def test_texts_are_embedded_in_order_to_unit_length() -> None:
    class Lengths:
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return [[float(len(text)), 1.0] for text in texts]

    texts = ["x" * number for number in range(1, 600)]
    found = embed(texts, Lengths())
    np.testing.assert_allclose(found[:, 0] / found[:, 1], np.arange(1, 600), rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, rtol=1e-5)
