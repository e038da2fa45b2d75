"""Share indexes and an independent reference among the tests of retrieval."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from rag_accel.engine_api import Document
from rag_accel.engines.retrieval import DocumentIndex, IndexKind, IndexSpec, Metric

sys.path.insert(0, str(Path(__file__).parent))

DIMENSION = 6

Found = list[tuple[str, float]]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Let FAISS compute on the test's own thread: waking others takes longer than the work."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    yield
    faiss.omp_set_num_threads(before)


@pytest.fixture(params=list(Metric), ids=str)
def metric(request: pytest.FixtureRequest) -> Metric:
    """Give each metric in turn."""
    return request.param


@pytest.fixture(params=list(IndexKind), ids=str)
def kind(request: pytest.FixtureRequest) -> IndexKind:
    """Give each kind of index in turn."""
    return request.param


@pytest.fixture
def spec(metric: Metric, kind: IndexKind) -> IndexSpec:
    """Configure a small index; an IVF one trains at 40 documents."""
    return IndexSpec(DIMENSION, metric, kind, num_clusters=8, nprobe=2, train_size=40)


@pytest.fixture(scope="session")
def make_documents() -> Callable[..., list[Document]]:
    """Return a maker of documents ``d<first>`` and so on, with metadata ``number`` modulo 3."""

    def make(count: int, first: int = 0, **metadata: Any) -> list[Document]:
        return [
            Document(f"d{number}", f"text {number}", {"number": number % 3, **metadata})
            for number in range(first, first + count)
        ]

    return make


@pytest.fixture(scope="session")
def make_vectors() -> Callable[..., Any]:
    """Return a maker of small whole-number vectors: exact in every arithmetic, and full of ties."""

    def make(count: int, seed: int = 0, dimension: int = DIMENSION) -> Any:
        numbers = np.random.default_rng(seed).integers(-2, 3, (count, dimension))
        return numbers.astype(np.float32)

    return make


@pytest.fixture
def make_index(
    spec: IndexSpec, make_documents: Callable[..., Any], make_vectors: Callable[..., Any]
) -> Callable[..., DocumentIndex]:
    """Return a maker of an index of ``count`` documents with whole-number vectors."""

    def make(count: int = 60) -> DocumentIndex:
        index = DocumentIndex(spec)
        index.add(make_documents(count), make_vectors(count))
        return index

    return make


@pytest.fixture(scope="session")
def reference() -> Callable[..., Found]:
    """Return a plain search: every score by itself, ties by place."""

    def search(ids: Sequence[str], vectors: Any, query: Any, k: int, metric: Metric) -> Found:
        rows = [row.astype(np.float64) for row in vectors]
        wanted = np.asarray(query, dtype=np.float64)
        if metric is Metric.INNER_PRODUCT:
            scores = [float(sum(row * wanted)) for row in rows]
        else:
            scores = [-float(sum((row - wanted) ** 2)) for row in rows]
        order = sorted(range(len(ids)), key=lambda place: (-scores[place], place))
        return [(ids[place], scores[place]) for place in order[: max(k, 0)]]

    return search


@pytest.fixture(scope="session")
def found() -> Callable[..., list[Found]]:
    """Return a function that gives ids and scores of each row of results."""

    def shorten(rows: Any) -> list[Found]:
        return [[(hit.document.id, hit.score) for hit in row] for row in rows]

    return shorten


@pytest.fixture
def blas_in_batches() -> Iterator[None]:
    """Make FAISS use BLAS for batches of two and more queries, as its older versions do."""
    before = faiss.cvar.distance_compute_blas_threshold
    faiss.cvar.distance_compute_blas_threshold = 2
    yield
    faiss.cvar.distance_compute_blas_threshold = before
