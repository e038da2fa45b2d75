"""A ranking by words is that of the documents as they are, whoever changes them and when."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rag_accel.engine_api import Document
from rag_accel.engines.retrieval import DocumentIndex, IndexSpec
from rag_accel.engines.retrieval.hybrid.lexical import LexicalIndex, LexicalSnapshot
from rag_accel.engines.retrieval.hybrid.lexical_spec import LexicalSpec
from rag_accel.engines.retrieval.hybrid.terms import TermScores

WAIT_S = 60.0

_IDS = st.sampled_from([f"d{number}" for number in range(8)])
_TEXT = st.lists(st.sampled_from(["ant", "bee", "cat", "dog"]), max_size=5).map(" ".join)


def _add(index: DocumentIndex, **texts: str) -> None:
    documents = [Document(id, text) for id, text in texts.items()]
    index.add(documents, np.ones((len(documents), 1)))


def _found(lexical: LexicalIndex, text: str, k: int = 100) -> list[tuple[str, str, float]]:
    (row,) = lexical.search([text], k)
    return [(hit.document.id, hit.document.text, hit.score) for hit in row]


def _ids(lexical: LexicalIndex, text: str, k: int = 100) -> list[str]:
    return [id for id, _, _ in _found(lexical, text, k)]


class RankingUnderChanges(RuleBasedStateMachine):
    """Compare, after any changes, with a ranking over an index that was filled at once."""

    def __init__(self) -> None:
        super().__init__()
        self.index = DocumentIndex(IndexSpec(1))
        self.lexical = LexicalIndex(self.index)
        self.texts: dict[str, str] = {}

    @rule(entries=st.dictionaries(_IDS, _TEXT, max_size=4))
    def add(self, entries: dict[str, str]) -> None:
        _add(self.index, **entries)
        self.texts.update(entries)

    @rule(ids=st.lists(_IDS, max_size=3))
    def delete(self, ids: list[str]) -> None:
        self.index.delete(ids)
        for id in ids:
            self.texts.pop(id, None)

    @invariant()
    def finds_what_a_new_index_finds(self) -> None:
        fresh = DocumentIndex(IndexSpec(1))
        _add(fresh, **self.texts)
        expected = LexicalIndex(fresh)
        for query in ("ant", "bee cat", "dog dog ant"):
            assert _found(self.lexical, query) == _found(expected, query)


TestRankingUnderChanges = RankingUnderChanges.TestCase
TestRankingUnderChanges.settings = settings(max_examples=30, stateful_step_count=15, deadline=None)


@pytest.fixture
def lexical() -> LexicalIndex:
    """Give a ranking over three documents with the word ``ant``, the first of them the best."""
    index = DocumentIndex(IndexSpec(1))
    _add(index, d0="ant ant", d1="ant", d2="ant bee", d3="cat")
    return LexicalIndex(index)


def _after_first_ranking(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]
) -> list[int]:
    """Make a change when documents have first been ranked but not yet returned; count rankings."""
    search = LexicalSnapshot.search
    rankings: list[int] = []

    def rank(self: LexicalSnapshot, text: str, k: int, where: Any = None) -> Any:
        hits = search(self, text, k, where)
        rankings.append(len(hits))
        if len(rankings) == 1:
            change()
        return hits

    monkeypatch.setattr(LexicalSnapshot, "search", rank)
    return rankings


def test_a_document_deleted_during_a_search_is_replaced_by_the_next_one(
    lexical: LexicalIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    rankings = _after_first_ranking(monkeypatch, lambda: lexical.index.delete(["d0"]))
    assert _ids(lexical, "ant", 2) == ["d1", "d2"]
    assert rankings == [2, 3]


def test_all_documents_deleted_during_a_search_leave_none(
    lexical: LexicalIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    _after_first_ranking(monkeypatch, lambda: lexical.index.delete(["d0", "d1", "d2", "d3"]))
    assert _ids(lexical, "ant", 2) == []


def test_a_document_replaced_during_a_search_is_found_as_it_was_and_then_as_it_is(
    lexical: LexicalIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    _after_first_ranking(monkeypatch, lambda: _add(lexical.index, d0="bee bee"))
    assert _found(lexical, "ant", 1)[0][:2] == ("d0", "ant ant")
    assert _ids(lexical, "ant") == ["d1", "d2"]
    assert _ids(lexical, "bee") == ["d0", "d2"]


def _while_building(monkeypatch: pytest.MonkeyPatch, act: Callable[[int], object]) -> None:
    """Call ``act`` with the number of documents when a build has taken them from the index."""
    score = TermScores.of

    def act_first(texts: Iterable[str], spec: LexicalSpec) -> TermScores:
        taken = list(texts)
        act(len(taken))
        return score(taken, spec)

    monkeypatch.setattr(TermScores, "of", act_first)


def test_a_change_during_a_build_is_seen_by_the_next_search(
    lexical: LexicalIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds: list[int] = []

    def change(size: int) -> None:
        builds.append(size)
        _add(lexical.index, **{f"new{len(builds)}": "ant"})
        lexical.index.delete(["d1"])

    _while_building(monkeypatch, change)
    assert _ids(lexical, "ant") == ["d0", "d2"]  # one build, however the documents change
    assert builds == [4]
    monkeypatch.undo()
    assert _ids(lexical, "ant") == ["d0", "new1", "d2"]


def test_searches_that_wait_for_the_same_documents_share_a_build(
    lexical: LexicalIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_wait = threading.Barrier(5)
    builds: list[int] = []

    def build_late(size: int) -> None:
        builds.append(size)
        all_wait.wait(WAIT_S)

    def search(_: int) -> list[str]:
        return _ids(lexical, "ant")

    class Lock:
        """Let the first one build only when the four others have asked for the lock."""

        def __init__(self) -> None:
            self._lock = threading.Lock()
            self._first = threading.Lock()

        def __enter__(self) -> None:
            if self._first.acquire(blocking=False):
                self._lock.acquire()
                return
            all_wait.wait(WAIT_S)
            self._lock.acquire()

        def __exit__(self, *_: object) -> None:
            self._lock.release()

    _while_building(monkeypatch, build_late)
    monkeypatch.setattr(lexical._building, "lock", Lock())
    with ThreadPoolExecutor(5) as pool:
        assert list(pool.map(search, range(5))) == [["d0", "d1", "d2"]] * 5
    assert builds == [4]


def test_no_search_finds_what_was_deleted_before_it_began_or_misses_what_was_added() -> None:
    index = DocumentIndex(IndexSpec(1))
    _add(index, **{f"old{number}": "ant bee" for number in range(40)})
    lexical = LexicalIndex(index)
    deleted: set[str] = set()
    added: set[str] = set()
    stop = threading.Event()

    def search() -> None:
        gone, there = set(deleted), set(added)
        found = set(_ids(lexical, "ant", 1000))
        assert not found & gone
        assert there <= found

    def keep_searching() -> None:
        search()
        while not stop.is_set():
            search()

    with ThreadPoolExecutor(3) as pool:
        searchers = [pool.submit(keep_searching) for _ in range(3)]
        try:
            for number in range(40):
                index.delete([f"old{number}"])
                deleted.add(f"old{number}")
                _add(index, **{f"new{number}": "ant"})
                added.add(f"new{number}")
        finally:
            stop.set()
        for searcher in searchers:
            searcher.result(WAIT_S)
    assert _ids(lexical, "ant") == [f"new{number}" for number in range(40)]
