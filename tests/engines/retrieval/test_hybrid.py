"""A hybrid search is the fusion of two rankings; nothing in a step harms anything else in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import faiss
import numpy as np
import pytest

from rag_accel.engine_api import (
    Document,
    EngineOutput,
    EngineRequest,
    HybridQuery,
    IngestBatch,
    PrimitiveKind,
    SearchQuery,
    StepBudget,
    TextBatch,
    WorkId,
)
from rag_accel.engines.retrieval import DocumentIndex, IndexKind, IndexSpec, RetrievalEngine
from rag_accel.engines.retrieval.hybrid.engine import HybridEngine
from rag_accel.engines.retrieval.hybrid.fusion import reciprocal_rank_fusion
from rag_accel.engines.retrieval.hybrid.lexical import LexicalIndex, LexicalSnapshot
from rag_accel.engines.retrieval.hybrid.lexical_spec import LexicalSpec
from rag_accel.engines.retrieval.hybrid.rankings import HybridSpec
from rag_accel.engines.retrieval.hybrid.terms import TermScores
from rag_accel.errors import ConfigError, EngineOutputError
from rag_accel.testing import EngineContract

Maker = Callable[..., Any]
WORDS = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen")


def _work(id: str, payload: object, kind: PrimitiveKind = PrimitiveKind.SEARCHING) -> EngineRequest:
    return EngineRequest(WorkId(id), "r", kind, payload)


def _search(id: str, text: Any, vector: Any, k: Any = 3, **rest: Any) -> EngineRequest:
    return _work(id, HybridQuery(vector, k, text=text, **rest))


def _ingest(id: str, document: Document, vector: Any) -> EngineRequest:
    return _work(id, IngestBatch((document,), [vector]), PrimitiveKind.INGESTION)


def _step(engine: HybridEngine, *work: EngineRequest) -> dict[str, EngineOutput]:
    engine.submit(work)
    outputs = engine.step(StepBudget())
    assert len({output.id for output in outputs}) == len(outputs) == len(work)
    return {output.id: output for output in outputs}


def _ids(output: EngineOutput) -> list[str]:
    assert output.error is None, output.error
    return [hit.document.id for hit in output.value]


@pytest.fixture
def index(make_vectors: Maker) -> DocumentIndex:
    """Give 60 documents of a few words each; their vectors know nothing of the words."""
    random = np.random.default_rng(5)
    index = DocumentIndex(IndexSpec(6))
    texts = [" ".join(random.choice(WORDS, random.integers(1, 6))) for _ in range(60)]
    index.add([Document(f"d{i}", t, {"m": i % 3}) for i, t in enumerate(texts)], make_vectors(60))
    return index


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
    vectors, probes = make_vectors(20, seed=3), (None, 8)
    outputs = _step(
        engine,
        *(_search(f"{i} {p}", "", v, nprobe=p) for i, v in enumerate(vectors) for p in probes),
    )
    for nprobe in probes:
        dense = index.search(vectors, 3, None, nprobe)
        expected = [[hit.document.id for hit in row] for row in dense]
        assert [_ids(outputs[f"{i} {nprobe}"]) for i in range(20)] == expected
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


# A step -----------------------------------------------------------------------------------------


def test_queries_of_one_step_have_weights_and_depths_of_their_own(index: DocumentIndex) -> None:
    vector = np.arange(6.0)
    settings: list[dict[str, Any]] = [
        {},
        {"dense_weight": 0.0},
        {"lexical_weight": 0.0},
        {"dense_weight": 0.3, "lexical_weight": 0.7},
        {"dense_depth": 2, "lexical_depth": 9},
        {"lexical_depth": 1},
    ]
    own = [
        _search(
            str(at),
            "ant bee",
            vector,
            5,
            weights=(one.get("dense_weight", 1.0), one.get("lexical_weight", 1.0)),
            depths=(one.get("dense_depth"), one.get("lexical_depth")),
        )
        for at, one in enumerate(settings)
    ]
    outputs = _step(HybridEngine(index), *own)
    for at, one in enumerate(settings):
        engine = HybridEngine(index, HybridSpec(**one))
        assert outputs[str(at)] == _step(engine, _search(str(at), "ant bee", vector, 5))[str(at)]


def test_a_ranking_by_words_is_shared_by_engines_of_its_index_alone(index: DocumentIndex) -> None:
    ranking = LexicalIndex(index)
    assert HybridEngine(index, lexical=ranking).lexical is ranking
    for other, spec in ((DocumentIndex(IndexSpec(6)), None), (index, LexicalSpec(k1=2.0))):
        with pytest.raises(ConfigError, match="ranking by words of another index"):
            HybridEngine(other, HybridSpec(lexical=spec or LexicalSpec()), lexical=ranking)


BAD: list[tuple[object, type[Exception]]] = [
    (HybridQuery(np.ones(6), 3, text=None), ConfigError),  # type: ignore[arg-type]
    (HybridQuery(np.ones(6), 3, text=["ant"]), ConfigError),  # type: ignore[arg-type]
    (HybridQuery(np.ones(6), 1001, text="ant"), ConfigError),
    (HybridQuery(np.ones(6), 1.5, text="ant"), ConfigError),  # type: ignore[arg-type]
    (HybridQuery(np.ones(6), 3, None, 0, text="ant"), ConfigError),
    (HybridQuery(np.ones(5), 3, text="ant"), ConfigError),
    (HybridQuery(np.ones(6), 3, text="ant", weights=(0, 0)), ConfigError),
    (HybridQuery(np.ones(6), 3, text="ant", weights=(-1, 1)), ConfigError),
    (HybridQuery(np.ones(6), 3, text="ant", weights=(1,)), ConfigError),  # type: ignore[arg-type]
    (HybridQuery(np.ones(6), 3, text="ant", depths=(0, None)), ConfigError),
    (HybridQuery(np.ones(6), 3, text="ant", depths=(None, 1001)), ConfigError),
    (HybridQuery(np.ones(6), 3, text="ant", depths=None), ConfigError),  # type: ignore[arg-type]
    (HybridQuery(np.full(6, np.nan), 3, text="ant"), EngineOutputError),
    (SearchQuery(np.ones(6), 3), ConfigError),
    (TextBatch(("ant",)), ConfigError),
    (None, ConfigError),
]


@pytest.mark.parametrize(("bad", "error"), BAD)
def test_a_bad_search_ends_alone_in_its_own_error(
    engine: HybridEngine, bad: object, error: type[Exception]
) -> None:
    first, last = _search("first", "ant", np.ones(6)), _search("last", "bee", np.ones(6))
    outputs = _step(engine, first, _work("bad", bad), last)
    assert isinstance(outputs["bad"].error, error)
    assert outputs["first"].value == _step(engine, first)["first"].value
    assert outputs["last"].value == _step(engine, last)["last"].value


def test_a_search_that_fails_while_words_are_ranked_fails_alone(
    engine: HybridEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = LexicalSnapshot.search

    def fail_for_long_texts(self: LexicalSnapshot, text: str, k: int, where: Any = None) -> Any:
        if len(text) > 100:
            raise MemoryError("too large")
        return search(self, text, k, where)

    monkeypatch.setattr(LexicalSnapshot, "search", fail_for_long_texts)
    outputs = _step(
        engine, _search("good", "ant", np.ones(6)), _search("bad", "ant " * 99, np.ones(6))
    )
    assert len(_ids(outputs["good"])) == 3
    assert isinstance(outputs["bad"].error, MemoryError)


def test_a_ranking_that_cannot_be_built_fails_searches_and_no_ingestion(
    engine: HybridEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: LexicalIndex) -> Any:
        raise MemoryError("too large")

    monkeypatch.setattr(LexicalIndex, "current", fail)
    outputs = _step(
        engine,
        _search("s", "ant", np.ones(6)),
        _search("bad", None, np.ones(6)),
        _ingest("i", Document("new", "ant"), np.ones(6)),
    )
    assert isinstance(outputs["s"].error, MemoryError)
    assert isinstance(outputs["bad"].error, ConfigError)
    assert outputs["i"].value == ("new",)


def test_a_search_sees_the_documents_as_they_were_when_its_step_began(
    engine: HybridEngine,
) -> None:
    far = np.full(6, 50.0)
    new = Document("new", "zebra zebra")
    search = _search("s", "zebra", far, k=60)
    assert "new" not in _ids(_step(engine, _ingest("i", new, far), search)["s"])
    assert _ids(_step(engine, search)["s"])[0] == "new"


@pytest.mark.parametrize("when", ["by words", "by vector"])
def test_a_document_deleted_during_a_step_is_left_out(
    engine: HybridEngine, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    best = Document("best", "zebra")
    engine.index.add([best], [[50.0] * 6])
    search = _search("s", "zebra ant", np.ones(6), k=5)
    before = _ids(_step(engine, search)["s"])
    assert before[0] == "best"
    owner = LexicalSnapshot if when == "by words" else DocumentIndex
    plain: Any = owner.search

    def search_and_delete(self: Any, *arguments: Any) -> Any:
        hits = plain(self, *arguments)
        engine.index.delete(["best"])
        return hits

    monkeypatch.setattr(owner, "search", search_and_delete)
    found = _ids(_step(engine, search)["s"])
    assert "best" not in found
    assert len(found) == 5
    assert found[:4] == before[1:]


def test_a_document_replaced_between_the_rankings_is_found_as_it_is(
    engine: HybridEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = LexicalSnapshot.search
    engine.index.add([Document("best", "zebra old")], [[50.0] * 6])

    def search_and_replace(self: LexicalSnapshot, *arguments: Any) -> Any:
        hits = search(self, *arguments)
        engine.index.add([Document("best", "zebra new")], [[50.0] * 6])
        return hits

    monkeypatch.setattr(LexicalSnapshot, "search", search_and_replace)
    (hit,) = _step(engine, _search("s", "zebra", np.ones(6), k=1))["s"].value
    assert hit.document == Document("best", "zebra new")


def test_the_ranking_by_words_is_built_once_in_a_step(
    engine: HybridEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds: list[int] = []
    score = TermScores.of

    def change(texts: Iterable[str], spec: LexicalSpec) -> TermScores:
        taken = list(texts)
        builds.append(len(taken))
        engine.index.add([Document(f"new{len(builds)}", "ant")], np.ones((1, 6)))
        return score(taken, spec)

    monkeypatch.setattr(TermScores, "of", change)
    work = [_search(str(i), "ant", np.ones(6)) for i in range(4)]
    _step(engine, *work)
    assert builds == [60]
    _step(engine, *work)
    assert builds == [60, 61]
    assert _step(engine) == {}
    assert builds == [60, 61]


class TestContract(EngineContract):
    """Run the rules of every engine."""

    def make_engine(self) -> HybridEngine:
        index = DocumentIndex(IndexSpec(4))
        random = np.random.default_rng(0)
        documents = [Document(str(i), f"text {WORDS[i % 8]} {i}") for i in range(50)]
        index.add(documents, random.standard_normal((50, 4)))
        return HybridEngine(index)

    def make_request(self, number: int) -> EngineRequest:
        vector = np.random.default_rng(number).standard_normal(4)
        text = f"{WORDS[number]} {number}"
        return _search(f"w{number}", text, vector.astype(np.float32), k=2 + number)

    def make_bad_request(self) -> EngineRequest:
        return _search("bad", None, np.ones(4))


class TestIngestionContract(TestContract):
    """Run the rules of every engine on ingestion."""

    def make_request(self, number: int) -> EngineRequest:
        return _ingest(f"w{number}", Document(f"new {number}", "ant"), np.ones(4))

    def make_bad_request(self) -> EngineRequest:
        return _ingest("bad", Document("bad", ""), np.full(4, np.nan))
