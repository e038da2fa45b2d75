"""Give the benchmarks a large corpus: real passages, and vectors drawn from a mixture of them.

The documentation of the installed packages, cut to ``PASSAGE_WORDS`` words, gives 20,000 passages
(``rag_accel.sample``), and MiniLM their vectors. Searching millions needs more, so the rest is
drawn at random from a mixture of probabilistic principal component analysers (Tipping and Bishop
1999) that is fitted to the real vectors, after these were reduced to fewer dimensions:

- ``Projection``: the leading right singular vectors of the real matrix, not centred, so that inner
  products are kept as well as a linear map of this rank can; then unit length again.
- ``Mixture``: spherical k-means, one component for about 100 real vectors. A component has its
  cluster's share of the vectors as weight, its mean, the ``RANK`` leading principal axes of its
  members with their variances, and what variance is left spread evenly over all axes. A draw has
  unit length.

The real vectors come first in the corpus, the drawn ones after them; a drawn vector has the text of
a random member of its component. Everything is seeded; the same machine makes the same corpus.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from langchain_rag_accel import accelerate, shutdown
from rag_accel.engines.retrieval.vectors.vectors import load_faiss
from rag_accel.errors import ConfigError
from rag_accel.sample import read_corpus
from rag_accel_demo import corpus_questions
from rag_accel_demo.material import EMBEDDER, local_embeddings

Floats = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int64]

NUM_PASSAGES = 20_000
PASSAGE_WORDS, MIN_PASSAGE_WORDS = 60, 15
NUM_QUESTIONS = 4_000
PER_COMPONENT = 100
RANK = 32
BLOCK = 50_000
SEED = 20_260
_PART = 1024
_KMEANS_ROUNDS = 20

_logger = logging.getLogger("bench.corpus")


@dataclass(frozen=True, slots=True)
class Passages:
    """Real passages.

    Args:
        texts: the passages.
        vectors: ``[len(texts), dim], float32``, of unit length.
        questions: questions, and the number of the passage each was made from.
    """

    texts: tuple[str, ...]
    vectors: Floats
    questions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Projection:
    """A map to fewer dimensions; ``axes: [dim, reduced], float32``, orthonormal columns."""

    axes: Floats

    @classmethod
    def fit(cls, vectors: Floats, dimension: int) -> Projection:
        """Find the axes along which vectors ``[n, dim]`` are longest.

        Raises:
            ConfigError: if there are fewer vectors or dimensions than ``dimension``.
        """
        if dimension > min(vectors.shape):
            raise ConfigError(
                "too few vectors to find that many axes",
                found=f"{dimension} axes of {vectors.shape}",
                valid=f"1 to {min(vectors.shape)}",
            )
        _, axes = np.linalg.eigh(vectors.T.astype(np.float64) @ vectors)
        return cls(np.ascontiguousarray(axes[:, ::-1][:, :dimension], dtype=np.float32))

    def apply(self, vectors: Floats) -> Floats:
        """Return ``[n, dim]`` as ``[n, reduced]``, of unit length."""
        return unit_rows(vectors @ self.axes)


@dataclass(frozen=True, slots=True)
class Mixture:
    """A source of vectors that are distributed like those it was fitted to.

    Args:
        weights: ``[components]``, float64, adding up to 1.
        means: ``[components, dim], float32``.
        axes: ``[components, rank, dim], float32``: leading axes, scaled by the standard deviation
            they add to the noise.
        noise: ``[components], float32``: standard deviation along every axis.
        members: of each component, the numbers of the vectors it was fitted to.
    """

    weights: npt.NDArray[np.float64]
    means: Floats
    axes: Floats
    noise: Floats
    members: tuple[Numbers, ...]

    @classmethod
    def fit(cls, vectors: Floats, components: int, rank: int = RANK, seed: int = SEED) -> Mixture:
        """Fit to vectors ``[n, dim]`` of unit length.

        Raises:
            ConfigError: if there are fewer vectors than components, or no dimension is left.
        """
        if not 1 <= components <= len(vectors) or not 0 <= rank < vectors.shape[1]:
            raise ConfigError(
                "a mixture cannot be fitted",
                found=f"{components} components of rank {rank} to {vectors.shape}",
                valid="at most one component a vector, and a rank below the dimension",
            )
        nearest = _clusters(vectors, components, seed)
        groups = [np.flatnonzero(nearest == number) for number in range(components)]
        members = tuple(group for group in groups if len(group))
        fitted = [_component(vectors[group], rank) for group in members]
        counts = np.asarray([len(group) for group in members], dtype=np.float64)
        return cls(
            counts / counts.sum(),
            np.stack([mean for mean, _, _ in fitted]),
            np.stack([axes for _, axes, _ in fitted]),
            np.asarray([noise for _, _, noise in fitted], dtype=np.float32),
            members,
        )

    def draw(self, count: int, random: np.random.Generator) -> tuple[Floats, Numbers]:
        """Return vectors ``[count, dim]`` and of each the number of a member of its component."""
        chosen = random.choice(len(self.weights), size=count, p=self.weights)
        dimension = self.means.shape[1]
        vectors = random.standard_normal((count, dimension), dtype=np.float32)
        along = random.standard_normal((count, self.axes.shape[1]), dtype=np.float32)
        places = random.random(count)
        sources = np.empty(count, dtype=np.int64)
        for number, group in enumerate(self.members):
            rows = np.flatnonzero(chosen == number)
            vectors[rows] *= self.noise[number]
            vectors[rows] += along[rows] @ self.axes[number] + self.means[number]
            sources[rows] = group[(places[rows] * len(group)).astype(np.int64)]
        return unit_rows(vectors), sources


def corpus_blocks(
    vectors: Floats, mixture: Mixture, count: int, seed: int = SEED
) -> Iterator[tuple[Floats, Numbers]]:
    """Yield ``count`` vectors in blocks, the real ones first, and the passage each has its text of.

    A corpus is the beginning of every larger one of the same seed.
    """
    for start in range(0, min(count, len(vectors)), BLOCK):
        end = min(start + BLOCK, count, len(vectors))
        yield vectors[start:end], np.arange(start, end, dtype=np.int64)
    for number, start in enumerate(range(len(vectors), count, BLOCK)):
        random = np.random.default_rng([seed, number])
        drawn, sources = mixture.draw(BLOCK, random)
        kept = min(BLOCK, count - start)
        yield drawn[:kept], sources[:kept]


def unit_rows(vectors: Floats) -> Floats:
    """Return rows scaled to unit length; a row of zeros stays."""
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))
    return vectors / np.where(lengths > 0, lengths, 1.0).astype(np.float32)[:, None]


def real_passages(cache: Path, count: int = NUM_PASSAGES) -> Passages:
    """Return real passages with their vectors and questions; kept in ``cache`` once made."""
    folder = cache / f"passages-{EMBEDDER}-{count}-{NUM_QUESTIONS}"
    listed = folder / "texts.json"
    if not listed.is_file():
        _logger.info("reading %d passages, once", count)
        texts, questions = _read(count)
        folder.mkdir(parents=True, exist_ok=True)
        _replace_text(listed, json.dumps({"texts": texts, "questions": questions}))
    read = json.loads(listed.read_text(encoding="utf-8"))
    questions = tuple((text, place) for text, place in read["questions"])
    return Passages(tuple(read["texts"]), _kept_parts(folder, read["texts"]), questions)


def short_passages(text: str) -> list[str]:
    """Return a text cut after every ``PASSAGE_WORDS`` words; a rest that says little is dropped."""
    words = text.split()
    parts = [words[start : start + PASSAGE_WORDS] for start in range(0, len(words), PASSAGE_WORDS)]
    return [" ".join(part) for part in parts if len(part) >= MIN_PASSAGE_WORDS] or [text]


def embed(texts: Sequence[str], embeddings: Any = None) -> Floats:
    """Return MiniLM's vectors of texts, ``[len(texts), dim], float32``, of unit length."""
    model = embeddings or _minilm()
    return unit_rows(np.asarray(model.embed_documents(list(texts)), dtype=np.float32))


@functools.cache
def _minilm() -> Any:
    return accelerate(local_embeddings())  # sooner than plain torch; vectors within 1e-6


def _forget_minilm() -> None:
    """Stop what computed the vectors: nothing of it is to run beside what is measured."""
    if _minilm.cache_info().currsize:
        _minilm.cache_clear()
        shutdown()


def kept_vectors(cache: Path, texts: Sequence[str]) -> Floats:
    """Return ``embed(texts)``, kept in ``cache`` under a digest of the texts once made."""
    digest = hashlib.sha256("\0".join([EMBEDDER, *texts]).encode()).hexdigest()[:16]
    return _kept_parts(cache / f"texts-{digest}", texts)


def _kept_parts(folder: Path, texts: Sequence[str]) -> Floats:
    """Return ``embed(texts)``; kept part by part, so that one who is stopped goes on there."""
    folder.mkdir(parents=True, exist_ok=True)
    parts: list[Floats] = []
    try:
        for start in range(0, len(texts), _PART):
            path = folder / f"vectors-{start:06}.npy"
            if not path.is_file():
                _logger.info("embedding %d texts from number %d, once", len(texts), start)
                begun = path.with_suffix(".begun.npy")
                np.save(begun, embed(texts[start : start + _PART]))
                begun.replace(path)
            parts.append(np.load(path))
    finally:
        _forget_minilm()
    return np.concatenate(parts)


def _replace_text(path: Path, text: str) -> None:
    begun = path.with_suffix(".begun")
    begun.write_text(text, encoding="utf-8")
    begun.replace(path)


def _read(count: int) -> tuple[list[str], list[tuple[str, int]]]:
    """Return passages, and questions with the number of the passage that answers begin in."""
    documents = read_corpus(max(1, count * 3 // 4)).documents  # chunks give about two each
    texts: list[str] = []
    first: dict[str, int] = {}
    for document in documents:
        if len(texts) >= count:
            break
        first[document.id] = len(texts)
        texts += short_passages(document.text)
    read = documents[: len(first)]
    asked = corpus_questions(read, NUM_QUESTIONS)
    return texts[:count], [
        (one.text, first[one.source_id]) for one in asked if one.source_id in first
    ]


def _clusters(vectors: Floats, components: int, seed: int) -> Numbers:
    kmeans = load_faiss().Kmeans(
        vectors.shape[1],
        components,
        niter=_KMEANS_ROUNDS,
        seed=seed,
        spherical=True,
        min_points_per_centroid=1,
    )
    kmeans.train(vectors)
    return np.argmax(vectors @ np.asarray(kmeans.centroids).T, axis=1)


def _component(vectors: Floats, rank: int) -> tuple[Floats, Floats, float]:
    """Return mean, scaled axes and noise: the maximum-likelihood fit, given the assignment.

    The noise is the mean of the variances that no axis takes; an axis adds what it has above that.
    """
    dimension = vectors.shape[1]
    mean = vectors.mean(axis=0, dtype=np.float64)
    centred = vectors - mean
    _, spread, directions = np.linalg.svd(centred, full_matrices=False)
    variances = spread**2 / len(vectors)
    taken = min(rank, len(variances))
    noise = float(variances[taken:].sum()) / (dimension - taken)
    axes = np.zeros((rank, dimension), dtype=np.float32)
    scale = np.sqrt(np.maximum(variances[:taken] - noise, 0.0))
    axes[:taken] = scale[:, None] * directions[:taken]
    return mean.astype(np.float32), axes, noise**0.5
