"""Documents whose parts run code of their own: they may fail, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from change_harness import check, filled

from rag_accel.engine_api import Document
from rag_accel.engines.retrieval import DocumentIndex, IndexKind, IndexSpec
from rag_accel.errors import ConfigError


class Calling:
    """Call something whenever it is compared; equal to everything."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call

    def __eq__(self, other: object) -> bool:
        self._call()
        return True

    def __deepcopy__(self, memo: object) -> Calling:
        raise RuntimeError("copied")


def _ids(index: DocumentIndex, where: Any = None) -> list[str]:
    return [hit.document.id for hit in index.search([np.ones(3)], 99, where)[0]]


def _with_value(kind: IndexKind, call: Callable[[DocumentIndex], object]) -> DocumentIndex:
    index, _ = filled(kind)
    index.add([Document("odd", "", {"y": Calling(lambda: call(index))})], [[9, 9, 9]])
    return index


@pytest.mark.parametrize(
    "change",
    [lambda index: index.add([Document("n", "")], [[1, 2, 3]]), lambda index: index.delete(["d1"])],
    ids=["add", "delete"],
)
def test_a_comparison_that_changes_the_index_is_refused_and_nothing_waits(
    kind: IndexKind, change: Callable[[DocumentIndex], object]
) -> None:
    errors: list[Exception] = []

    def try_change(index: DocumentIndex) -> None:
        try:
            change(index)
        except Exception as error:
            errors.append(error)
            raise

    index = _with_value(kind, try_change)
    before = _ids(index)
    assert _ids(index, {"y": 1}) == []  # what cannot be compared does not match
    assert [type(error) for error in errors] == [ConfigError]
    assert _ids(index) == before


def test_a_comparison_may_search(kind: IndexKind) -> None:
    found: list[list[str]] = []
    index = _with_value(kind, lambda index: found.append(_ids(index)))
    assert _ids(index, {"y": 1}) == ["odd"]
    assert len(found[0]) == 15


def test_a_comparison_that_raises_does_not_match(kind: IndexKind) -> None:
    def fail(index: DocumentIndex) -> None:
        raise RuntimeError("compared")

    index = _with_value(kind, fail)
    index.add([Document("even", "", {"y": 1})], [[1, 1, 1]])
    assert _ids(index, {"y": 1}) == ["even"]
    index.delete(["odd"])
    assert len(index) == 15


def test_an_id_of_a_class_of_its_own_becomes_plain_text(kind: IndexKind) -> None:
    class OddText(str):
        __slots__ = ()

        def __hash__(self) -> int:
            raise RuntimeError("hashed")

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("compared")

    index, contents = filled(kind)
    index.add([Document(OddText("odd"), "")], [[1, 1, 1]])
    (document,) = index.get(["odd"])
    assert type(document.id) is str
    index.delete(["odd"])
    check(index, contents)


class BreakingOff(Mapping[str, Any]):
    """Fail after the first field."""

    def __getitem__(self, name: str) -> int:
        return 1

    def __iter__(self) -> Iterator[str]:
        yield "x"
        raise LookupError("broken off")

    def __len__(self) -> int:
        return 2


def _some_documents() -> Iterator[Document]:
    yield Document("n1", "")
    raise LookupError("broken off")


class BreakingArray:
    """Fail when it is taken for numbers."""

    def __array__(self, *_: object, **__: object) -> Any:
        raise LookupError("broken off")


@pytest.mark.parametrize(
    ("documents", "vectors"),
    [
        ([Document("n1", ""), Document("n2", "", BreakingOff())], np.ones((2, 3))),
        (_some_documents, np.ones((2, 3))),
        ([Document("d1", "other"), Document("n2", "")], BreakingArray()),
    ],
    ids=["metadata", "documents", "vectors"],
)
def test_what_breaks_off_half_way_changes_nothing(
    kind: IndexKind, documents: Any, vectors: Any
) -> None:
    index, contents = filled(kind)
    with pytest.raises(LookupError, match="broken off"):
        index.add(documents() if callable(documents) else documents, vectors)
    check(index, contents)


def test_ids_that_break_off_half_way_change_nothing(kind: IndexKind) -> None:
    def ids() -> Iterator[str]:
        yield "d1"
        raise LookupError("broken off")

    index, contents = filled(kind)
    for call in (index.delete, index.get, index.vectors):
        with pytest.raises(LookupError, match="broken off"):
            call(ids())
    check(index, contents)


@pytest.mark.parametrize("bad", ["d1", b"d1", ["d1", 1], ["d1", None], [["d1"]]])
def test_ids_that_are_no_ids_are_refused_and_change_nothing(kind: IndexKind, bad: Any) -> None:
    index, contents = filled(kind)
    for call in (index.delete, index.get, index.vectors):
        with pytest.raises(ConfigError, match="bad id"):
            call(bad)
    check(index, contents)


def test_no_ids_are_no_documents(kind: IndexKind) -> None:
    index, contents = filled(kind)
    assert (index.delete([]), index.get([]), index.vectors([])) == (0, [], {})
    check(index, contents)


def test_an_index_that_forgets_itself_while_it_is_searched_answers(kind: IndexKind) -> None:
    held = [DocumentIndex(IndexSpec(1, kind=kind))]
    held[0].add([Document("a", "", {"y": Calling(held.clear)})], [[1]])
    assert [hit.document.id for hit in held[0].search([[1]], 1, {"y": 1})[0]] == ["a"]
    assert held == []
