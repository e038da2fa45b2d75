"""A hybrid search is the fusion of two rankings, each taken as configured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import faiss
import numpy as np
import pytest
from hybrid_harness import WORDS, wordy_index
from hybrid_harness import ids as _ids
from hybrid_harness import search as _search
from hybrid_harness import step as _step
from hybrid_harness import work as _work

from rag_accel.engine_api import (
    Document,
    EngineRequest,
    HybridQuery,
    PrimitiveKind,
    StepBudget,
)
from rag_accel.engines.retrieval import DocumentIndex, IndexKind, IndexSpec, RetrievalEngine
from rag_accel.engines.retrieval.hybrid.engine import HybridEngine
from rag_accel.engines.retrieval.hybrid.fusion import reciprocal_rank_fusion
from rag_accel.engines.retrieval.hybrid.lexical import LexicalIndex, LexicalSnapshot
from rag_accel.engines.retrieval.hybrid.lexical_spec import LexicalSpec
from rag_accel.engines.retrieval.hybrid.rankings import HybridSpec
from rag_accel.errors import ConfigError

Maker = Callable[..., Any]


@pytest.fixture
def index(make_vectors: Maker) -> DocumentIndex:
    """Give 60 documents of a few words each; their vectors know nothing of the words."""
    return wordy_index(make_vectors)


@pytest.fixture
def engine(index: DocumentIndex) -> HybridEngine:
    """Give an engine over these documents."""
    return HybridEngine(index)


@pytest.fixture
def dense_calls(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Record the result counts of each search by vector."""
    calls: list[list[int]] = []
    search = DocumentIndex.search

    def record(self: DocumentIndex, vectors: Any, k: Any, *rest: Any) -> Any:
        calls.append(list(k))
        return search(self, vectors, k, *rest)

    monkeypatch.setattr(DocumentIndex, "search", record)
    return calls


def _requests(make_vectors: Maker) -> list[EngineRequest]:
    random = np.random.default_rng(1)
    return [
        _search(
            f"w{number}",
            " ".join(random.choice([*WORDS, "unknown"], number % 5)),
            vector,
            k=number % 9,
            where={"m": number % 2} if number % 3 else None,
        )
        for number, vector in enumerate(make_vectors(20, seed=2))
    ]


def test_every_search_is_the_fusion_of_both_rankings(
    index: DocumentIndex, make_vectors: Maker
) -> None:
    spec = HybridSpec(7, 11, dense_weight=2, lexical_weight=0.5, rank_constant=3)
    work = _requests(make_vectors)
    outputs = _step(HybridEngine(index, spec), *work)
    for request in work:
        query: HybridQuery = request.payload
        (dense,) = index.search([query.vector], max(7, query.k), query.where)
        (worded,) = LexicalIndex(index).search([query.text], max(11, query.k), query.where)
        rankings = [[hit.document.id for hit in ranking] for ranking in (dense, worded)]
        fused = reciprocal_rank_fusion(rankings, [2, 0.5], 3)[: max(0, query.k)]
        found = [(hit.document.id, hit.score) for hit in outputs[request.id].value]
        assert found == [(one.item, one.score) for one in fused]
        documents = index.get(one.item for one in fused)
        assert [hit.document for hit in outputs[request.id].value] == documents


def test_a_document_that_only_one_ranking_knows_is_found() -> None:
    index = DocumentIndex(IndexSpec(2))
    near = [Document(f"near{i}", "about animals") for i in range(9)]
    index.add([*near, Document("code", "error RA310")], [[1, 0]] * 9 + [[-1, 0]])
    search = _search("s", "what is ra310", [1, 0])
    engine = HybridEngine(index, HybridSpec(dense_depth=5))
    assert "code" not in [hit.document.id for hit in index.search([[1, 0]], 5)[0]]
    assert _ids(_step(engine, search)["s"]) == ["near0", "code", "near1"]


def test_searches_that_agree_share_one_call_by_vector(
    engine: HybridEngine, dense_calls: list[list[int]]
) -> None:
    work = [_search(str(i), "ant", np.ones(6), k=1 + i) for i in range(5)]
    _step(engine, *work, _search("filtered", "ant", np.ones(6), where={"m": 1}))
    assert sorted(dense_calls) == [[50], [50] * 5]


def test_nprobe_reaches_the_search_by_vector(make_vectors: Maker) -> None:
    index = DocumentIndex(IndexSpec(6, kind=IndexKind.IVF, num_clusters=8, nprobe=1, train_size=60))
    index.add([Document(f"d{i}", "") for i in range(60)], make_vectors(60))
    engine = HybridEngine(index, HybridSpec(dense_depth=3))
    vectors = make_vectors(20, seed=3)
    for nprobe in (None, 8):
        work = [_search(str(i), "", vector, nprobe=nprobe) for i, vector in enumerate(vectors)]
        outputs = _step(engine, *work)
        dense = index.search(vectors, 3, None, nprobe)
        expected = [[hit.document.id for hit in row] for row in dense]
        assert [_ids(outputs[request.id]) for request in work] == expected
    assert dense != index.search(vectors, 3)  # the two differ, so that the loop can tell


def test_depths_bound_both_rankings_and_grow_with_k(
    index: DocumentIndex, dense_calls: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    depths: list[int] = []
    search = LexicalSnapshot.search

    def record(self: LexicalSnapshot, text: str, k: int, where: Any = None) -> Any:
        depths.append(k)
        return search(self, text, k, where)

    monkeypatch.setattr(LexicalSnapshot, "search", record)
    engine = HybridEngine(index, HybridSpec(4, 6, max_depth=40))
    _step(engine, _search("few", "ant", np.ones(6), k=1))
    found = _step(engine, _search("many", "ant", np.ones(6), k=40))["many"]
    assert (dense_calls, depths) == ([[4], [40]], [6, 40])
    assert len(_ids(found)) == 40


@pytest.mark.parametrize(("k", "found"), [(-1, 0), (0, 0), (1, 1), (1000, 60), (np.int64(2), 2)])
def test_k_may_be_any_integer_up_to_max_depth(engine: HybridEngine, k: Any, found: int) -> None:
    assert len(_ids(_step(engine, _search("s", "ant", np.ones(6), k))["s"])) == found


def test_an_engine_that_searches_by_vector_alone_takes_the_same_query(
    index: DocumentIndex,
) -> None:
    query = HybridQuery(np.ones(6), 4, {"m": 1}, text="ant")
    engine = RetrievalEngine(index)
    engine.submit([_work("s", query)])
    (output,) = engine.step(StepBudget())
    assert output.value == tuple(index.search([query.vector], 4, {"m": 1})[0])


@pytest.mark.parametrize(
    "options",
    [
        {"dense_depth": 0},
        {"lexical_depth": 1.5},
        {"max_depth": 0},
        {"dense_depth": 1001},
        {"lexical_depth": 1001},
        {"dense_weight": -1},
        {"lexical_weight": float("nan")},
        {"rank_constant": "60"},
        {"dense_weight": 0, "lexical_weight": 0},
    ],
)
def test_a_bad_option_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        HybridSpec(**options)
    assert next(iter(options)) in str(caught.value.where)


def test_words_are_cut_as_configured(index: DocumentIndex) -> None:
    engine = HybridEngine(index, HybridSpec(lexical=LexicalSpec(stopwords=frozenset(WORDS))))
    (dense,) = index.search(np.ones((1, 6)), 3)
    found = _step(engine, _search("s", "ant bee", np.ones(6)))["s"]
    assert _ids(found) == [hit.document.id for hit in dense]
    assert engine.lexical.spec.stopwords == set(WORDS)


def test_the_granted_threads_are_used_and_no_other_threads_number_changes(
    engine: HybridEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    search = DocumentIndex.search

    def record(self: DocumentIndex, *arguments: Any) -> Any:
        seen.append(faiss.omp_get_max_threads())
        return search(self, *arguments)

    monkeypatch.setattr(DocumentIndex, "search", record)
    engine = HybridEngine(engine.index, max_threads=2)
    before = faiss.omp_get_max_threads()
    for threads in (1, 2, 9):
        engine.submit([_search("s", "ant", np.ones(6))])
        engine.step(StepBudget(threads=threads))
    assert seen == [1, 2, 2]
    assert faiss.omp_get_max_threads() == before


def test_the_profile_says_what_the_engine_does(index: DocumentIndex) -> None:
    profile = HybridEngine(index, max_batch=7, max_threads=2).profile
    assert profile.kinds == {PrimitiveKind.SEARCHING, PrimitiveKind.INGESTION}
    assert (profile.max_batch, profile.max_threads) == (7, 2)
    assert profile.capabilities == {"text"}
    assert profile.pure
    assert not profile.stepped
    assert profile.latency.predict_s(64) > profile.latency.predict_s(1) > 0
