"""Ranking by words is BM25 over the documents as they are, with the dense side's order."""

from __future__ import annotations

import logging
import math
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from rag_accel.engine_api import Document
from rag_accel.engines.retrieval import DocumentIndex, IndexSpec
from rag_accel.engines.retrieval.hybrid.lexical import LexicalIndex
from rag_accel.engines.retrieval.hybrid.lexical_spec import LexicalSpec
from rag_accel.engines.retrieval.hybrid.terms import TermScores
from rag_accel.errors import ConfigError

_WORD = st.sampled_from(["ant", "bee", "cat", "Dog", "e", "42"])
_TEXT = st.lists(_WORD, max_size=9).map(" ".join)
_TEXTS = st.lists(_TEXT, max_size=12)
_FIELD = st.sampled_from([0, 1, True, 1.0, None, "x", [0], (1,), "missing"])


def _index(texts: Sequence[str], fields: Sequence[Any] = ()) -> DocumentIndex:
    """Return an index of documents ``d0`` and so on whose vectors do not matter."""
    index = DocumentIndex(IndexSpec(1))
    metadata = [{} if x == "missing" else {"x": x} for x in fields] or [{} for _ in texts]
    documents = [Document(f"d{i}", text, metadata[i]) for i, text in enumerate(texts)]
    index.add(documents, np.ones((len(texts), 1)))
    return index


def _lexical(*texts: str, **options: Any) -> LexicalIndex:
    return LexicalIndex(_index(texts), LexicalSpec(**options))


def _ids(lexical: LexicalIndex, text: str, k: int = 100, where: Any = None) -> list[str]:
    (row,) = lexical.search([text], k, where)
    return [hit.document.id for hit in row]


def _plain_bm25(texts: Sequence[str], query: str, k1: float, b: float) -> list[float]:
    """Score each text by the formula, term by term, with nothing prepared."""
    split = [re.findall(r"\w+", text.lower()) for text in texts]
    average = sum(map(len, split)) / max(1, len(split))
    scores = []
    for terms in split:
        score = 0.0
        for term in re.findall(r"\w+", query.lower()):
            holders = sum(term in other for other in split)
            idf = math.log(1 + (len(split) - holders + 0.5) / (holders + 0.5))
            count = terms.count(term)
            if count:
                score += idf * count / (count + k1 * (1 - b + b * len(terms) / average))
        scores.append(score)
    return scores


@given(_TEXTS, _TEXT, st.integers(0, 14), st.floats(0, 5), st.floats(0, 1))
def test_it_finds_what_a_plain_bm25_finds(
    texts: list[str], query: str, k: int, k1: float, b: float
) -> None:
    expected = _plain_bm25(texts, query, k1, b)
    (row,) = _lexical(*texts, k1=k1, b=b).search([query], k)
    places = [int(hit.document.id[1:]) for hit in row]
    assert len(row) == min(k, sum(score > 0 for score in expected))
    for hit, place in zip(row, places, strict=True):
        assert hit.score == pytest.approx(expected[place], rel=1e-9)
    keys = [(-hit.score, place) for hit, place in zip(row, places, strict=True)]
    assert keys == sorted(keys)
    left = [score for place, score in enumerate(expected) if place not in places]
    assert not row or max(left, default=0) <= row[-1].score * (1 + 1e-9)


@given(st.lists(st.tuples(_TEXT, _FIELD), max_size=10), _FIELD)
def test_a_filter_keeps_what_it_keeps_in_a_search_by_vector(
    entries: list[tuple[str, Any]], value: Any
) -> None:
    index = _index([f"{text} all" for text, _ in entries], [field for _, field in entries])
    where = {"x": value}
    (dense,) = index.search([[1.0]], 100, where)
    found = _ids(LexicalIndex(index), "all", where=where)
    assert sorted(found) == sorted(hit.document.id for hit in dense)
    # The statistics are those of all documents: a filter changes no score and no order.
    everything = _ids(LexicalIndex(index), "all ant bee")
    narrowed = _ids(LexicalIndex(index), "all ant bee", where=where)
    assert narrowed == [id for id in everything if id in narrowed]
    assert _ids(LexicalIndex(index), "all ant bee", 2, where) == narrowed[:2]


@pytest.mark.parametrize(("k", "found"), [(-1, 0), (0, 0), (1, 1), (3, 3), (10**12, 3)])
def test_k_may_be_anything_whole(k: int, found: int) -> None:
    assert len(_ids(_lexical("ant", "ant bee", "ant cat", "dog"), "ant", k)) == found


def test_several_queries_find_what_each_finds_alone() -> None:
    lexical = _lexical("ant bee", "bee cat", "cat dog")
    queries = ["bee", "", "cat dog"]
    assert lexical.search(queries, 2) == [lexical.search([query], 2)[0] for query in queries]
    assert lexical.search([], 2) == []


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("The ANT", "ant"),
        ("stra\N{LATIN SMALL LETTER SHARP S}e", "STRA\N{LATIN SMALL LETTER SHARP S}E"),
        ("cafe\N{COMBINING ACUTE ACCENT}", "caf\N{LATIN SMALL LETTER E WITH ACUTE}"),
        ("\N{LATIN SMALL LIGATURE FI}le", "file"),
        ("vitamin C", "c"),
        ("page 7", "7"),
        ("snake_case-kebab", "kebab"),
        ("\N{CYRILLIC CAPITAL LETTER DE}\N{CYRILLIC SMALL LETTER A}", "\u0434\u0430"),
        ("\ud800 ant", "ant"),
    ],
)
def test_terms_are_found_whatever_their_form(text: str, query: str) -> None:
    assert _ids(_lexical("other", text), query) == ["d1"]


def test_stopwords_are_ignored_in_documents_and_queries() -> None:
    lexical = _lexical("the ant", "the", stopwords=["The"])
    assert _ids(lexical, "the") == []
    assert lexical.search(["the ant"], 5) == lexical.search(["ant"], 5)


def test_the_pattern_says_what_a_term_is() -> None:
    lexical = _lexical("a-b c", "a b", token_pattern=r"[^\s]+")
    assert _ids(lexical, "a-b") == ["d0"]
    assert _ids(_lexical("#ant bee", "ant", token_pattern=r"#(\w+)"), "#ant") == ["d0"]


@pytest.mark.parametrize(
    "options",
    [
        {"k1": -1},
        {"k1": math.nan},
        {"k1": math.inf},
        {"k1": "1"},
        {"b": 1.01},
        {"b": True},
        {"stopwords": "the"},
        {"stopwords": [1]},
        {"token_pattern": "("},
        {"token_pattern": "(a)(b)"},
        {"token_pattern": r"\w*"},
        {"token_pattern": 3},
    ],
)
def test_a_bad_option_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        LexicalSpec(**options)
    assert caught.value.where == next(iter(options))


@pytest.mark.parametrize(
    ("texts", "k", "where", "named"),
    [
        ("ant", 1, None, "texts"),
        (["ant", 3], 1, None, "texts[1]"),
        ([None], 1, None, "texts[0]"),
        ([b"ant"], 1, None, "texts[0]"),
        (["ant"], 1.5, None, "k"),
        (["ant"], True, None, "k"),
        (["ant"], None, None, "k"),
        (["ant"], 1, "x", "where"),
        (["ant"], 1, [("x", 1)], "where"),
    ],
)
def test_a_bad_argument_is_named_and_nothing_is_built(
    texts: Any, k: Any, where: Any, named: str, builds: list[int]
) -> None:
    lexical = _lexical("ant")
    with pytest.raises(ConfigError) as caught:
        lexical.search(texts, k, where)
    assert caught.value.where == named
    assert builds == []


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record of how many documents each ranking is built."""
    sizes: list[int] = []
    score = TermScores.of

    def record(texts: Iterable[str], spec: LexicalSpec) -> TermScores:
        taken = list(texts)
        sizes.append(len(taken))
        return score(taken, spec)

    monkeypatch.setattr(TermScores, "of", record)
    return sizes


def test_it_is_built_by_the_first_search_after_a_change_and_once(builds: list[int]) -> None:
    lexical = _lexical("ant", "bee")
    assert builds == []
    lexical.search(["ant", "bee"], 1)
    lexical.search(["ant"], 1)
    assert builds == [2]
    for number in range(5):
        lexical.index.add([Document(f"new{number}", "ant")], [[1]])
    assert builds == [2]
    assert len(_ids(lexical, "ant")) == 6
    assert len(_ids(lexical, "ant")) == 6
    assert builds == [2, 7]


def test_what_it_returns_is_the_callers_own() -> None:
    lexical = LexicalIndex(_index(["ant"], ["x"]))
    ((hit,),) = lexical.search(["ant"], 1)
    hit.document.metadata["x"] = "changed"  # type: ignore[index]
    ((again,),) = lexical.search(["ant"], 1, {"x": "x"})
    assert again.document.metadata == {"x": "x"}
    assert lexical.index.get(["d0"])[0].metadata == {"x": "x"}


def test_it_logs_nothing_and_shows_no_documents_in_its_repr(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    lexical = _lexical("secret")
    lexical.search(["", "secret"], 1)
    assert caplog.records == []
    assert "secret" not in repr(lexical.current())


def test_it_starts_no_thread_and_brings_no_library() -> None:
    code = """
import sys, threading
import numpy as np
from rag_accel.engine_api import Document
from rag_accel.engines.retrieval import DocumentIndex, IndexSpec
from rag_accel.engines.retrieval.hybrid.lexical import LexicalIndex
index = DocumentIndex(IndexSpec(1))
index.add([Document("a", "ant")], np.ones((1, 1)))
before = set(sys.modules)
assert len(LexicalIndex(index).search(["ant"], 1)[0]) == 1
assert threading.active_count() == 1
assert not {name.partition(".")[0] for name in set(sys.modules) - before} & {"bm25s", "tqdm"}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
