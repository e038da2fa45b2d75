"""What a document index does with what it is given, one caller at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rag_accel.engine_api import Document
from rag_accel.engines.retrieval import DocumentIndex, IndexKind, IndexSpec, Metric
from rag_accel.errors import ConfigError, EngineOutputError

MakeIndex = Callable[..., DocumentIndex]
Maker = Callable[..., Any]


def test_a_search_in_one_cluster_finds_the_best_of_that_cluster_only(
    make_documents: Maker, found: Maker
) -> None:
    index = DocumentIndex(
        IndexSpec(2, Metric.L2, IndexKind.IVF, num_clusters=2, nprobe=1, train_size=4)
    )
    # Two groups far apart; the second query sits just on the near side of the border.
    index.add(make_documents(4), [[0, 0], [0, 1], [10, 0], [6, 0]])
    assert index.is_trained
    rows = found(index.search([[0, 0], [3.9, 0]], 2))
    assert [[id for id, _ in row] for row in rows] == [["d0", "d1"], ["d0", "d1"]]
    assert found(index.search([[3.9, 0]], 1, nprobe=2))[0][0][0] == "d3"


def test_an_inner_product_score_is_the_product_itself() -> None:
    index = DocumentIndex(IndexSpec(2))
    index.add([Document("a", "")], [[2.0, 3.0]])
    (hit,) = index.search([[5.0, 7.0]], 1)[0]
    assert hit.score == 31.0
    assert index.spec.metric.raw_score(hit.score) == 31.0


def test_an_l2_score_is_the_negated_squared_distance() -> None:
    index = DocumentIndex(IndexSpec(2, Metric.L2))
    index.add([Document("near", ""), Document("far", "")], [[1.0, 1.0], [4.0, 5.0]])
    near, far = index.search([[1.0, 1.0]], 2)[0]
    assert (near.document.id, near.score) == ("near", 0.0)
    assert (far.document.id, far.score) == ("far", -25.0)
    assert index.spec.metric.raw_score(far.score) == 25.0


def test_no_queries_find_no_rows(make_index: MakeIndex) -> None:
    index = make_index()
    assert index.search([], 5) == []
    assert index.search([], []) == []
    assert index.search(np.empty((0, index.spec.dimension)), 5) == []


@pytest.mark.parametrize("k", [0, -1, -(10**30)])
def test_asking_for_zero_or_fewer_finds_none(make_index: MakeIndex, k: int) -> None:
    index = make_index()
    assert index.search(np.zeros((2, 6)), k) == [[], []]


@pytest.mark.parametrize("k", [60, 61, 10**30])
def test_asking_for_more_than_there_is_finds_everything_once(make_index: MakeIndex, k: int) -> None:
    (row,) = make_index(60).search(np.ones((1, 6)), k)
    assert len({hit.document.id for hit in row}) == len(row) == 60


def test_each_query_may_ask_for_its_own_number(make_index: MakeIndex) -> None:
    rows = make_index(60).search(np.ones((4, 6)), [3, 0, 100, 1])
    assert [len(row) for row in rows] == [3, 0, 60, 1]


@pytest.mark.parametrize(
    "where",
    [{"absent": 1}, {"absent": None}, {"number": 7}, {"number": [1]}, {"number": 1, "a": 2}],
)
def test_a_filter_that_nothing_satisfies_finds_nothing(
    make_index: MakeIndex, where: dict[str, Any]
) -> None:
    assert make_index().search(np.ones((1, 6)), 5, where=where) == [[]]


def test_an_empty_filter_is_no_filter(make_index: MakeIndex, found: Maker) -> None:
    index = make_index()
    query = np.ones((1, 6))
    assert found(index.search(query, 5, where={})) == found(index.search(query, 5))


def test_values_are_compared_with_equality_whatever_their_type() -> None:
    class Stubborn:
        __hash__ = object.__hash__

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("cannot be compared")

    values = [1, 1.0, True, "1", ["x"], {"y": 1}, ("x",), np.int64(1), float("nan"), Stubborn()]
    index = DocumentIndex(IndexSpec(1))
    documents = [Document(str(place), "", {"v": value}) for place, value in enumerate(values)]
    index.add(documents, np.ones((len(values), 1)))

    def matching(value: Any) -> str:
        return "".join(hit.document.id for hit in index.search([[1]], 99, where={"v": value})[0])

    assert matching(1) == "0127"
    assert matching(np.int64(1)) == "0127"
    assert matching(["x"]) == "4"
    assert matching({"y": 1}) == "5"
    assert matching(("x",)) == "6"
    assert matching(values[8]) == ""


def test_getting_keeps_the_order_asked_for_and_leaves_out_unknown_ids(
    make_index: MakeIndex,
) -> None:
    documents = make_index().get(["d4", "unknown", "d1", "d4"])
    assert [document.id for document in documents] == ["d4", "d1", "d4"]


def test_the_version_grows_with_each_change_and_only_then(make_index: MakeIndex) -> None:
    index = make_index(10)
    versions = [index.version]
    index.search(np.ones((1, 6)), 3)
    index.add([], [])
    index.delete(["unknown"])
    assert index.version == versions[0]
    index.add([Document("d1", "replaced")], np.ones((1, 6)))
    versions.append(index.version)
    index.delete(["d1"])
    versions.append(index.version)
    assert versions == sorted(set(versions))


@pytest.mark.parametrize("shape", [(2, 5), (2, 7), (3, 6), (1, 6), (12,), (2, 6, 1), ()])
def test_vectors_of_the_wrong_shape_are_refused_and_nothing_is_taken(
    make_index: MakeIndex, make_documents: Maker, shape: tuple[int, ...]
) -> None:
    index = make_index(10)
    with pytest.raises(ConfigError, match=r"wrong shape.*valid: shape \(2, 6\)") as caught:
        index.add(make_documents(2, first=10), np.zeros(shape))
    assert isinstance(caught.value, ValueError)
    assert (len(index), index.version) == (10, 1)


@pytest.mark.parametrize("shape", [(2, 5), (2, 7), (6,), (1, 6, 1), ()])
def test_queries_of_the_wrong_shape_are_refused(
    make_index: MakeIndex, shape: tuple[int, ...]
) -> None:
    with pytest.raises(ConfigError, match=r"wrong shape.*valid: shape \(n, 6\)"):
        make_index().search(np.zeros(shape), 3)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e39, 2e18])
def test_a_vector_that_cannot_be_compared_is_refused_by_name(
    make_index: MakeIndex, make_documents: Maker, bad: float
) -> None:
    index = make_index(10)
    vectors = np.ones((3, 6))
    vectors[1, 4] = bad
    with pytest.raises(EngineOutputError, match="at vector of document 'd11'"):
        index.add(make_documents(3, first=10), vectors)
    assert len(index) == 10
    with pytest.raises(EngineOutputError, match="at query 1"):
        index.search(vectors, 2)


@pytest.mark.parametrize("bad", ["text", [["a"] * 6], [[1, 2], [3]], None, [[None] * 6]])
def test_vectors_that_are_no_numbers_are_refused(make_index: MakeIndex, bad: object) -> None:
    with pytest.raises((ConfigError, EngineOutputError)):
        make_index().search(bad, 2)


@pytest.mark.parametrize("k", [1.0, True, "3", None, [1, 2, 3], [1.5, 1]])
def test_a_bad_number_of_results_is_refused(make_index: MakeIndex, k: Any) -> None:
    with pytest.raises(ConfigError, match="at k"):
        make_index().search(np.ones((2, 6)), k)


@pytest.mark.parametrize("nprobe", [0, -1, 1.0, True, "all"])
def test_a_bad_nprobe_is_refused(make_index: MakeIndex, nprobe: Any) -> None:
    with pytest.raises(ConfigError, match="at nprobe"):
        make_index().search(np.ones((2, 6)), 3, nprobe=nprobe)


def test_an_nprobe_beyond_the_clusters_visits_all(make_index: MakeIndex, found: Maker) -> None:
    index = make_index()
    query = np.ones((1, 6))
    assert found(index.search(query, 9, nprobe=10**30)) == found(index.search(query, 9, nprobe=8))


def test_a_filter_that_is_no_mapping_is_refused(make_index: MakeIndex) -> None:
    with pytest.raises(ConfigError, match="at where"):
        make_index().search(np.ones((2, 6)), 3, where=[("number", 1)])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("document", "place"),
    [
        ("text", r"documents\[0\]"),
        (Document(1, "text"), r"documents\[0\].id"),  # type: ignore[arg-type]
        (Document("a", None), r"documents\[0\].text"),  # type: ignore[arg-type]
        (Document("a", "text", None), r"documents\[0\].metadata"),  # type: ignore[arg-type]
    ],
)
def test_a_bad_document_is_refused_by_place(
    make_index: MakeIndex, document: Any, place: str
) -> None:
    with pytest.raises(ConfigError, match=place):
        make_index().add([document], np.ones((1, 6)))


def test_changing_what_was_handed_in_or_out_does_not_change_the_index() -> None:
    index = DocumentIndex(IndexSpec(2))
    metadata, vectors = {"x": 1}, np.ones((1, 2), dtype=np.float32)
    index.add([Document("a", "", metadata)], vectors)
    metadata["x"] = 2
    vectors[:] = 9
    (hit,) = index.search([[1, 1]], 1)[0]
    hit.document.metadata["x"] = 3  # type: ignore[index]
    index.get(["a"])[0].metadata["x"] = 4  # type: ignore[index]
    (again,) = index.search([[1, 1]], 1, where={"x": 1})[0]
    assert (again.document.metadata, again.score) == ({"x": 1}, 2.0)


def test_a_transposed_float64_view_is_taken_by_value(make_index: MakeIndex, found: Maker) -> None:
    index = make_index()
    columns = np.arange(12, dtype=np.float64).reshape(6, 2)
    plain = np.ascontiguousarray(columns.T, dtype=np.float32)
    assert found(index.search(columns.T, 5)) == found(index.search(plain, 5))
