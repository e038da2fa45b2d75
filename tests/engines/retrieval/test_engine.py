"""How the retrieval engine batches, and that nothing in a batch harms anything else in it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import faiss
import numpy as np
import pytest

from rag_accel.engine_api import (
    Document,
    EngineOutput,
    EngineRequest,
    IngestBatch,
    PrimitiveKind,
    SearchQuery,
    StepBudget,
    TextBatch,
    WorkId,
)
from rag_accel.engines.retrieval import DocumentIndex, IndexKind, IndexSpec, RetrievalEngine
from rag_accel.engines.retrieval.vectors.flat import FlatVectors
from rag_accel.errors import ConfigError, EngineOutputError
from rag_accel.system.processor import usable_cores
from rag_accel.testing import EngineContract

Maker = Callable[..., Any]


def _search(id: str, vector: Any, k: int = 3, **rest: Any) -> EngineRequest:
    return _work(id, PrimitiveKind.SEARCHING, SearchQuery(vector, k, **rest))


def _ingest(id: str, documents: tuple[Document, ...], vectors: Any) -> EngineRequest:
    return _work(id, PrimitiveKind.INGESTION, IngestBatch(documents, vectors))


def _work(id: str, kind: PrimitiveKind, payload: object) -> EngineRequest:
    return EngineRequest(WorkId(id), "r", kind, payload)


def _step(engine: RetrievalEngine, *work: EngineRequest) -> dict[str, EngineOutput]:
    engine.submit(work)
    outputs = engine.step(StepBudget())
    assert len({output.id for output in outputs}) == len(outputs)
    return {output.id: output for output in outputs}


def _ids(output: EngineOutput) -> list[str]:
    assert output.error is None
    return [hit.document.id for hit in output.value]


@pytest.fixture
def engine(make_index: Maker) -> RetrievalEngine:
    """Give an engine over 60 documents."""
    return RetrievalEngine(make_index(60))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record how many queries each search of an index gets."""
    sizes: list[int] = []
    search = DocumentIndex.search_checked

    def record(self: DocumentIndex, vectors: Any, *rest: Any) -> Any:
        sizes.append(len(vectors))
        return search(self, vectors, *rest)

    monkeypatch.setattr(DocumentIndex, "search_checked", record)
    return sizes


def test_every_search_of_a_step_finds_what_it_finds_alone(
    engine: RetrievalEngine, make_vectors: Maker
) -> None:
    queries = [
        SearchQuery(vector, number % 9, {"number": number % 2} if number % 3 else None, nprobe)
        for number, vector in enumerate(make_vectors(30, seed=1))
        for nprobe in (None, 1 + number % 4)
    ]
    work = [_work(str(i), PrimitiveKind.SEARCHING, query) for i, query in enumerate(queries)]
    outputs = _step(engine, *work)
    for number, query in enumerate(queries):
        alone = engine.index.search([query.vector], query.k, query.where, query.nprobe)
        assert outputs[str(number)].value == tuple(alone[0])


def test_searches_that_agree_share_one_call(
    engine: RetrievalEngine, make_vectors: Maker, calls: list[int]
) -> None:
    vectors = make_vectors(12, seed=1)
    _step(
        engine,
        *(_search(f"plain {i}", vectors[i], k=4 + i % 4) for i in range(6)),
        *(_search(f"filtered {i}", vectors[i], where={"number": 1}) for i in range(3)),
        *(_search(f"wider {i}", vectors[i], nprobe=5) for i in range(2)),
        _search("many", vectors[0], k=50),
    )
    assert sorted(calls) == [1, 2, 3, 6]


def test_equal_filters_share_a_call_whatever_their_order(
    engine: RetrievalEngine, calls: list[int]
) -> None:
    vector = np.ones(6)
    _step(
        engine,
        _search("a", vector, where={"number": 1, "x": 2}),
        _search("b", vector, where={"x": 2, "number": 1}),
        _search("c", vector, where={}),
        _search("d", vector),
    )
    assert sorted(calls) == [2, 2]


def test_an_unhashable_filter_value_is_searched_for() -> None:
    engine = RetrievalEngine(DocumentIndex(IndexSpec(1)))
    engine.index.add([Document("a", "", {"x": [1]}), Document("b", "")], [[1], [1]])
    outputs = _step(
        engine, _search("s", [1], where={"x": [1]}), _search("t", [1], where={"x": [2]})
    )
    assert (_ids(outputs["s"]), _ids(outputs["t"])) == (["a"], [])


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (SearchQuery(np.ones(5), 3), ConfigError),
        (SearchQuery(np.ones((1, 6)), 3), ConfigError),
        (SearchQuery("text", 3), ConfigError),
        (SearchQuery(np.full(6, np.nan), 3), EngineOutputError),
        (SearchQuery(np.ones(6), 1.5), ConfigError),  # type: ignore[arg-type]
        (SearchQuery(np.ones(6), 3, "number"), ConfigError),  # type: ignore[arg-type]
        (SearchQuery(np.ones(6), 3, None, 0), ConfigError),
        (TextBatch(("a",)), ConfigError),
        (None, ConfigError),
    ],
)
def test_a_bad_search_ends_alone_in_its_own_error(
    engine: RetrievalEngine, bad: Any, error: type[Exception]
) -> None:
    outputs = _step(
        engine,
        _search("first", np.ones(6)),
        _work("bad", PrimitiveKind.SEARCHING, bad),
        _search("last", np.ones(6)),
    )
    assert isinstance(outputs["bad"].error, error)
    assert len(_ids(outputs["first"])) == len(_ids(outputs["last"])) == 3


def test_work_of_a_kind_it_does_not_do_ends_in_an_error(engine: RetrievalEngine) -> None:
    outputs = _step(
        engine,
        _work("w", PrimitiveKind.EMBEDDING, TextBatch(("a",))),
        _work("x", PrimitiveKind.EMBEDDING, SearchQuery(np.ones(6), 3)),
    )
    assert all(isinstance(output.error, ConfigError) for output in outputs.values())


def test_a_query_that_fails_inside_its_shared_call_fails_alone(
    engine: RetrievalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = FlatVectors.fetch

    def fail_for_nines(self: Any, queries: Any, *rest: Any) -> Any:
        if (queries == 9).any():
            raise MemoryError("too large")
        return fetch(self, queries, *rest)

    flat = RetrievalEngine(DocumentIndex(IndexSpec(6)))
    flat.index.add([Document("a", "")], np.ones((1, 6)))
    monkeypatch.setattr(FlatVectors, "fetch", fail_for_nines)
    outputs = _step(flat, _search("good", np.ones(6)), _search("bad", np.full(6, 9)))
    assert _ids(outputs["good"]) == ["a"]
    assert isinstance(outputs["bad"].error, MemoryError)


def test_a_bad_ingestion_takes_nothing_and_its_neighbours_are_taken(
    engine: RetrievalEngine,
) -> None:
    good, other = (Document("good", ""),), (Document("x", ""), Document("y", ""))
    outputs = _step(
        engine,
        _ingest("nan", other, [[1.0] * 6, [np.nan] * 6]),
        _ingest("short", other, np.ones((1, 6))),
        _ingest("good", good, np.ones((1, 6))),
        _work("wrong", PrimitiveKind.INGESTION, SearchQuery(np.ones(6), 1)),
    )
    assert isinstance(outputs["nan"].error, EngineOutputError)
    assert isinstance(outputs["short"].error, ConfigError)
    assert isinstance(outputs["wrong"].error, ConfigError)
    assert outputs["good"].value == ("good",)
    assert len(engine.index) == 61


def test_a_search_sees_the_index_as_it_was_when_its_step_began(engine: RetrievalEngine) -> None:
    far = np.full(6, 50.0)
    ingestion = _ingest("ingest", (Document("far", ""),), far[None])
    outputs = _step(engine, ingestion, _search("same step", far, k=1))
    assert _ids(outputs["same step"]) != ["far"]
    assert _ids(_step(engine, _search("next step", far, k=1))["next step"]) == ["far"]


def test_the_granted_threads_are_used_and_no_other_threads_number_changes(
    engine: RetrievalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    search = DocumentIndex.search_checked

    def record(self: DocumentIndex, *arguments: Any) -> Any:
        seen.append(faiss.omp_get_max_threads())
        return search(self, *arguments)

    monkeypatch.setattr(DocumentIndex, "search_checked", record)
    engine = RetrievalEngine(engine.index, max_threads=4)

    def step(threads: int) -> int:
        engine.submit([_search("s", np.ones(6))])
        engine.step(StepBudget(threads=threads))
        return faiss.omp_get_max_threads()

    here = faiss.omp_get_max_threads()
    with ThreadPoolExecutor(1) as worker:
        before = worker.submit(faiss.omp_get_max_threads).result()
        after = {worker.submit(step, threads).result() for threads in (3, 2, 9)}
    assert seen == [3, 2, 4]
    assert after == {before}
    assert faiss.omp_get_max_threads() == here


def test_the_number_of_threads_does_not_change_what_is_found(
    make_documents: Maker, make_vectors: Maker, kind: IndexKind
) -> None:
    spec = IndexSpec(16, kind=kind, num_clusters=8, nprobe=3, train_size=300)
    index = DocumentIndex(spec)
    index.add(make_documents(300), make_vectors(300, dimension=16))
    engine = RetrievalEngine(index, max_threads=4)
    values = []
    for threads in (1, 4):
        engine.submit(
            [_search(str(i), v) for i, v in enumerate(make_vectors(20, seed=1, dimension=16))]
        )
        values.append([output.value for output in engine.step(StepBudget(threads=threads))])
    assert values[0] == values[1]


def test_the_profile_says_what_the_engine_does(make_index: Maker) -> None:
    profile = RetrievalEngine(make_index(0), max_batch=7).profile
    assert profile.kinds == {PrimitiveKind.SEARCHING, PrimitiveKind.INGESTION}
    assert (profile.max_batch, profile.max_threads) == (7, usable_cores())
    assert profile.pure
    assert profile.latency.predict_s(64) > profile.latency.predict_s(1) > 0


class TestContract(EngineContract):
    """Run the rules of every engine."""

    def make_engine(self) -> RetrievalEngine:
        index = DocumentIndex(IndexSpec(4))
        random = np.random.default_rng(0)
        documents = [Document(str(number), f"text {number}") for number in range(50)]
        index.add(documents, random.standard_normal((50, 4)))
        return RetrievalEngine(index)

    def make_request(self, number: int) -> EngineRequest:
        vector = np.random.default_rng(number).standard_normal(4)
        return _search(f"w{number}", vector.astype(np.float32), k=2 + number)

    def make_bad_request(self) -> EngineRequest:
        return _search("bad", np.ones(3))


class TestIngestionContract(TestContract):
    """Run the rules of every engine on ingestion."""

    def make_request(self, number: int) -> EngineRequest:
        return _ingest(f"w{number}", (Document(f"new {number}", ""),), np.ones((1, 4)))

    def make_bad_request(self) -> EngineRequest:
        return _ingest("bad", (Document("bad", ""),), np.full((1, 4), np.nan))
