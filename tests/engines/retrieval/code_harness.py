"""Search crowds of an engine by codes, and compare with searches alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import numpy as np

from rag_accel.engine_api import (
    Document,
    EngineOutput,
    EngineRequest,
    PrimitiveKind,
    SearchQuery,
    StepBudget,
    WorkId,
)
from rag_accel.engines.retrieval import (
    DocumentIndex,
    IndexKind,
    IndexSpec,
    Metric,
    RetrievalEngine,
)
from rag_accel.engines.retrieval.coded import searches
from rag_accel.engines.retrieval.coded.searches import CodedSearches
from rag_accel.testing import ManualClock

DIMENSION = 4
MOST_STEPS = 1000


#: searches of every kind, valid ones
QUERIES = st.builds(
    SearchQuery,
    st.tuples(*[st.integers(-2, 2)] * DIMENSION),
    st.one_of(st.integers(-1, 12), st.sampled_from([30, 500])),
    st.sampled_from([None, None, None, {}, {"x": 0}, {"x": 9}]),
    st.sampled_from([None, 1, 2, 100]),
)


def make_index(metric: Metric, count: int, seed: int = 0, style: str = "whole") -> DocumentIndex:
    spec = IndexSpec(DIMENSION, metric, IndexKind.IVF, num_clusters=8, nprobe=3, train_size=30)
    index = DocumentIndex(spec)
    index.add(make_documents(count), make_vectors(count, seed, style))
    return index


def make_documents(count: int, first: int = 0) -> list[Document]:
    return [Document(f"d{n}", "", {"x": n % 3}) for n in range(first, first + count)]


def make_vectors(count: int, seed: int = 0, style: str = "whole") -> Any:
    random = np.random.default_rng(seed)
    if style == "whole":
        return random.integers(-2, 3, (count, DIMENSION)).astype(np.float32)
    vectors = random.standard_normal((count, DIMENSION)).astype(np.float32)
    if style == "duplicates":
        vectors = vectors[random.integers(0, 1 + count // 10, count)]
    if style == "adversarial":
        scale = random.choice([0, 1e-42, 1e-20, 1, 1, 1e10], count).astype(np.float32)
        vectors *= scale[:, None]
    return vectors


def search(engine: RetrievalEngine, *queries: SearchQuery) -> list[EngineOutput]:
    """Search, in one step if nothing is cut; return the outputs in the order of the queries."""
    names = [WorkId(f"w{number}") for number in range(len(queries))]
    engine.submit(
        [
            EngineRequest(name, "r", PrimitiveKind.SEARCHING, query)
            for name, query in zip(names, queries, strict=True)
        ]
    )
    outputs: dict[WorkId, EngineOutput] = {}
    for _ in range(MOST_STEPS):
        outputs |= {output.id: output for output in engine.step(StepBudget())}
        if len(outputs) == len(names):
            break
    return [outputs[name] for name in names]


def check(engine: RetrievalEngine, *queries: SearchQuery) -> None:
    """Search in one step and compare with searches alone: ids, order and scores."""
    for query, output in zip(queries, search(engine, *queries), strict=True):
        alone = engine.index.search([query.vector], query.k, query.where, query.nprobe)
        assert output.error is None
        assert output.value == tuple(alone[0])


def crowd(count: int = 6, seed: int = 7, **rest: Any) -> list[SearchQuery]:
    return [SearchQuery(vector, 5, **rest) for vector in make_vectors(count, seed, "normal")]


def all_pays() -> AbstractContextManager[Any]:
    """Let indexes of some vectors be large; codes are made at once."""
    return mock.patch.multiple(
        searches, MIN_NUMBERS=1, MIN_READ=1, MIN_CROWD_READ=1, MIN_SEARCHES=1
    )


@contextmanager
def coded(index: DocumentIndex, **options: Any) -> Iterator[tuple[RetrievalEngine, list[int]]]:
    """Give an engine that searches by codes wherever it can, and the sizes of those crowds."""
    sizes: list[int] = []
    search = CodedSearches.search

    def record(self: CodedSearches, crowd: Any) -> Any:
        found = search(self, crowd)
        if found is not None:
            sizes.append(len(crowd))
        return found

    engine = RetrievalEngine(index, max_threads=1, clock=ManualClock(), **options)
    with all_pays(), mock.patch.object(CodedSearches, "search", record):
        yield engine, sizes
        engine.close()


def prepare(engine: RetrievalEngine, sizes: list[int] | None = None) -> None:
    """Let the engine see a crowd, and make its codes; ``sizes`` is empty afterwards."""
    check(engine, *crowd())
    engine._coded.kept.wait()
    (sizes or []).clear()
