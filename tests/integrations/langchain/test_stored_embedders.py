"""A stored store is loaded with embeddings that make its vectors, whatever they are called."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings

from langchain_rag_accel import RagAccelVectorStore
from rag_accel import Accelerator, IndexFileError
from rag_accel.engines.retrieval import DocumentIndex, IndexSpec, save_index

TEXTS = [f"text number {number}" for number in range(30)]


class Hashed(Embeddings):
    """Embed by hash; ``model_name`` is where a model might lie on disk."""

    def __init__(self, seed: int = 0, model_name: str = "", noise: float = 0.0) -> None:
        self.model_name = model_name
        self._seed = seed
        self._noise = noise
        self.texts: list[str] = []

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.texts += texts
        return [self._vector(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self._vector(text)

    def _vector(self, text: str) -> list[float]:
        digest = hashlib.sha256(f"{self._seed} {text}".encode()).digest()
        rng = np.random.default_rng(int.from_bytes(digest[:8], "big"))
        vector = rng.normal(size=16) + self._noise * rng.normal(size=16)
        return vector.tolist()


class Renamed(Hashed):
    """Be the same embeddings under another name."""


@pytest.fixture
def path(tmp_path: Path, accelerator: Accelerator) -> Path:
    """Give the path of a stored store of thirty documents."""
    embedding = Hashed(model_name="/home/me/models/mini-lm")
    store = RagAccelVectorStore.from_texts(TEXTS, embedding, ids=TEXTS, accelerator=accelerator)
    store.save(tmp_path / "store")
    return tmp_path / "store"


@pytest.mark.parametrize(
    "embedding",
    [Hashed(model_name="/elsewhere/mini-lm"), Renamed(), Hashed(noise=1e-3)],
    ids=["moved", "renamed", "rounded otherwise"],
)
def test_embeddings_that_make_the_same_vectors_load_it(
    path: Path, embedding: Hashed, accelerator: Accelerator
) -> None:
    store = RagAccelVectorStore.load(path, embedding, accelerator=accelerator)
    assert store.similarity_search(TEXTS[7], k=1)[0].id == TEXTS[7]
    assert len(embedding.texts) <= 3


@pytest.mark.parametrize(
    "embedding",
    [Hashed(seed=1), Hashed(noise=1.0), DeterministicFakeEmbedding(size=16)],
    ids=["other vectors", "vectors tuned further", "another class"],
)
def test_embeddings_that_make_other_vectors_are_refused_and_told_what_to_do(
    path: Path, embedding: Embeddings, accelerator: Accelerator
) -> None:
    with pytest.raises(IndexFileError, match=r"another embedder.*check_embedder=False") as caught:
        RagAccelVectorStore.load(path, embedding, accelerator=accelerator)
    assert "mini-lm" in str(caught.value)
    assert "/home/me" not in str(caught.value)
    loaded = RagAccelVectorStore.load(
        path, embedding, check_embedder=False, accelerator=accelerator
    )
    assert len(loaded.get_by_ids(TEXTS)) == 30


def test_the_same_class_with_another_dimension_is_refused(
    tmp_path: Path, accelerator: Accelerator
) -> None:
    for texts in (TEXTS, []):
        embedding = DeterministicFakeEmbedding(size=8)
        RagAccelVectorStore.from_texts(texts, embedding, accelerator=accelerator).save(
            tmp_path / "store"
        )
        RagAccelVectorStore.load(tmp_path / "store", embedding, accelerator=accelerator)
        with pytest.raises(IndexFileError, match=r"16.*valid: .*8"):
            RagAccelVectorStore.load(
                tmp_path / "store", DeterministicFakeEmbedding(size=16), accelerator=accelerator
            )


def test_another_scaling_is_refused(path: Path, accelerator: Accelerator) -> None:
    with pytest.raises(IndexFileError, match="another embedder"):
        RagAccelVectorStore.load(path, Hashed(), normalize=False, accelerator=accelerator)


def test_a_file_of_an_older_version_is_checked_alike(
    tmp_path: Path, accelerator: Accelerator
) -> None:
    index = DocumentIndex(IndexSpec(16))
    store = RagAccelVectorStore(Hashed(), index, accelerator=accelerator)
    store.add_documents([Document(page_content=text) for text in TEXTS])
    old = "some.module.Hashed /home/me/models/mini-lm, normalize=True"
    save_index(index, tmp_path / "old", old)
    assert RagAccelVectorStore.load(tmp_path / "old", Hashed(), accelerator=accelerator).index
    with pytest.raises(IndexFileError, match="another embedder"):
        RagAccelVectorStore.load(tmp_path / "old", Hashed(seed=2), accelerator=accelerator)


def test_an_error_of_the_embeddings_is_their_own(path: Path, accelerator: Accelerator) -> None:
    class Broken(Hashed):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            raise ConnectionError("no network")

    with pytest.raises(ConnectionError, match="no network"):
        RagAccelVectorStore.load(path, Broken(), accelerator=accelerator)
    assert RagAccelVectorStore.load(
        path, Broken(), check_embedder=False, accelerator=accelerator
    ).index


@pytest.mark.parametrize("count", [0, 1, 31])
def test_embeddings_of_too_few_or_too_many_vectors_are_refused(
    path: Path, accelerator: Accelerator, count: int
) -> None:
    class Miscounting(Hashed):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return [self._vector("x")] * count

    with pytest.raises(IndexFileError, match="another embedder"):
        RagAccelVectorStore.load(path, Miscounting(), accelerator=accelerator)
