"""Nothing in a step of hybrid searches harms anything else in it, and all of it is fresh."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from hybrid_harness import WORDS, wordy_index
from hybrid_harness import ids as _ids
from hybrid_harness import ingest as _ingest
from hybrid_harness import search as _search
from hybrid_harness import step as _step
from hybrid_harness import work as _work

from rag_accel.engine_api import (
    Document,
    EngineRequest,
    HybridQuery,
    SearchQuery,
    TextBatch,
)
from rag_accel.engines.retrieval import DocumentIndex, IndexSpec
from rag_accel.engines.retrieval.hybrid.engine import HybridEngine
from rag_accel.engines.retrieval.hybrid.lexical import LexicalIndex, LexicalSnapshot
from rag_accel.engines.retrieval.hybrid.lexical_spec import LexicalSpec
from rag_accel.engines.retrieval.hybrid.rankings import HybridSpec
from rag_accel.engines.retrieval.hybrid.terms import TermScores
from rag_accel.errors import ConfigError, EngineOutputError
from rag_accel.testing import EngineContract

Maker = Callable[..., Any]


@pytest.fixture
def index(make_vectors: Maker) -> DocumentIndex:
    """Give 60 documents of a few words each; their vectors know nothing of the words."""
    return wordy_index(make_vectors)


@pytest.fixture
def engine(index: DocumentIndex) -> HybridEngine:
    """Give an engine over these documents."""
    return HybridEngine(index)


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
