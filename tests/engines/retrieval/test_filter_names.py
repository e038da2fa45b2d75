"""Filters may name any field: nothing grows with their number, and none costs a look at all."""

from __future__ import annotations

import gc
from collections.abc import Sized
from typing import Any

import numpy as np
import pytest

from rag_accel.engine_api import (
    Document,
    EngineRequest,
    PrimitiveKind,
    SearchQuery,
    StepBudget,
    WorkId,
)
from rag_accel.engines.retrieval import DocumentIndex, IndexKind, IndexSpec, RetrievalEngine
from rag_accel.engines.retrieval.hybrid.lexical import LexicalIndex
from rag_accel.engines.retrieval.index.documents import DocumentTable


def _index(kind: IndexKind) -> DocumentIndex:
    index = DocumentIndex(IndexSpec(2, kind=kind, num_clusters=2, train_size=10))
    documents = [Document(f"d{number}", "ant", {"a": number, "b": 1}) for number in range(20)]
    index.add(documents, np.ones((20, 2)))
    index.delete(["d3"])
    return index


def _held(*roots: object) -> int:
    """Return how many things all containers under some objects hold together."""
    seen: dict[int, object] = {}
    waiting: list[Any] = list(roots)
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type) or type(one).__module__ == "types":
            continue
        if type(one).__name__ in ("module", "function", "method", "builtin_function_or_method"):
            continue
        seen[id(one)] = one
        waiting += gc.get_referents(one)
    sized = (one for one in seen.values() if isinstance(one, dict | list | set | frozenset | tuple))
    return sum(len(one) for one in sized if isinstance(one, Sized))


@pytest.mark.parametrize("count", [2_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_filters_with_fresh_names_leave_nothing_larger(kind: IndexKind, count: int) -> None:
    index = _index(kind)
    lexical, engine = LexicalIndex(index), RetrievalEngine(index)

    def search(number: int) -> None:
        where = {f"name{number}": number}
        assert index.search([[1, 1]], 5, where) == [[]]
        assert index.search([[1, 1]], 5, {"a": 1, **where}) == [[]]
        assert lexical.search(["ant"], 5, where) == [[]]
        query = SearchQuery(np.ones(2), 5, where)
        work = EngineRequest(WorkId(str(number)), "r", PrimitiveKind.SEARCHING, query)
        engine.submit([work])
        (output,) = engine.step(StepBudget(threads=1))
        assert output.value == ()

    for number in range(100):
        search(number)
    before = _held(index, lexical, engine)
    for number in range(100, count):
        search(number)
    assert _held(index, lexical, engine) <= before


def test_a_filter_on_an_unknown_field_looks_at_no_document(
    monkeypatch: pytest.MonkeyPatch, kind: IndexKind
) -> None:
    index = _index(kind)
    indexed: list[str] = []
    index_field = DocumentTable._index_field

    def record(self: DocumentTable, name: str) -> Any:
        indexed.append(name)
        return index_field(self, name)

    monkeypatch.setattr(DocumentTable, "_index_field", record)
    for where in ({"unknown": 1}, {"unknown": None}, {"a": 1, "unknown": 1}, {1: 1}, {None: 1}):
        assert index.search([[1, 1]], 5, where) == [[]]  # type: ignore[arg-type]
    assert indexed == []
    for _ in range(3):
        assert len(index.search([[1, 1]], 50, {"b": 1})[0]) == 19
    assert indexed == ["b"]


def test_a_field_is_found_as_soon_as_a_document_has_it(kind: IndexKind) -> None:
    index = _index(kind)
    assert index.search([[1, 1]], 5, {"new": 1}) == [[]]
    index.add([Document("d3", "", {"new": 1})], [[1, 1]])
    assert [hit.document.id for hit in index.search([[1, 1]], 5, {"new": 1})[0]] == ["d3"]
