"""What an index is made of: its options, FAISS, and clusters once it has enough documents."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rag_accel.engine_api import Document
from rag_accel.engines.retrieval import DocumentIndex, IndexKind, IndexSpec, Metric
from rag_accel.errors import ConfigError

Maker = Callable[..., Any]


def test_an_ivf_index_is_flat_until_it_has_enough_documents(
    metric: Metric, make_documents: Maker, make_vectors: Maker
) -> None:
    index = DocumentIndex(IndexSpec(6, metric, IndexKind.IVF, train_size=50))
    index.add(make_documents(49), make_vectors(49))
    assert not index.is_trained
    index.add(make_documents(1, first=49), make_vectors(1, seed=5))
    assert index.is_trained
    index.delete(f"d{number}" for number in range(30))
    assert index.is_trained


def test_replacing_documents_does_not_count_towards_training(
    make_documents: Maker, make_vectors: Maker
) -> None:
    index = DocumentIndex(IndexSpec(6, kind=IndexKind.IVF, train_size=50))
    for _ in range(3):
        index.add(make_documents(40), make_vectors(40))
    assert not index.is_trained


def test_a_flat_index_never_trains(make_documents: Maker, make_vectors: Maker) -> None:
    index = DocumentIndex(IndexSpec(6, train_size=1))
    index.add(make_documents(50), make_vectors(50))
    assert not index.is_trained


def test_training_gives_the_same_clusters_each_time(
    metric: Metric, make_documents: Maker, make_vectors: Maker, found: Maker
) -> None:
    rows = []
    for _ in range(2):
        index = DocumentIndex(IndexSpec(6, metric, IndexKind.IVF, train_size=200))
        index.add(make_documents(200), make_vectors(200))
        rows.append(found(index.search(make_vectors(20, seed=1), 5, nprobe=1)))
    assert rows[0] == rows[1]


@pytest.mark.parametrize("num_clusters", [None, 10])
def test_equal_vectors_only_can_be_trained_on(
    metric: Metric, num_clusters: int | None, capfd: pytest.CaptureFixture[str]
) -> None:
    spec = IndexSpec(4, metric, IndexKind.IVF, num_clusters=num_clusters, train_size=20)
    index = DocumentIndex(spec)
    index.add([Document(str(number), "") for number in range(40)], np.ones((40, 4)))
    assert [hit.document.id for hit in index.search(np.ones((1, 4)), 3)[0]] == ["0", "1", "2"]
    assert capfd.readouterr() == ("", "")


def test_a_search_visits_more_clusters_when_asked(
    metric: Metric, make_documents: Maker, make_vectors: Maker, reference: Maker, found: Maker
) -> None:
    spec = IndexSpec(6, metric, IndexKind.IVF, num_clusters=20, nprobe=1, train_size=300)
    index = DocumentIndex(spec)
    vectors, queries = make_vectors(300), make_vectors(30, seed=1)
    index.add(make_documents(300), vectors)
    ids = [f"d{number}" for number in range(300)]
    exact = [reference(ids, vectors, query, 5, metric) for query in queries]

    def num_right(nprobe: int | None) -> int:
        rows = found(index.search(queries, 5, nprobe=nprobe))
        return sum(row == right for row, right in zip(rows, exact, strict=True))

    assert num_right(None) < num_right(6) < num_right(20) == 30


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ({"dimension": 0}, "dimension"),
        ({"dimension": 2.0}, "dimension"),
        ({"dimension": 10**30}, "dimension"),
        ({"dimension": 2, "metric": "cosine"}, "metric"),
        ({"dimension": 2, "kind": "hnsw"}, "kind"),
        ({"dimension": 2, "nprobe": 0}, "nprobe"),
        ({"dimension": 2, "num_clusters": True}, "num_clusters"),
        ({"dimension": 2, "num_clusters": 10, "train_size": 9}, "num_clusters"),
        ({"dimension": 2, "train_size": -1}, "train_size"),
    ],
)
def test_a_bad_index_option_is_refused_by_name(arguments: dict[str, Any], where: str) -> None:
    with pytest.raises(ConfigError, match=f"at {where}"):
        IndexSpec(**arguments)


def test_options_may_be_given_as_text() -> None:
    spec = IndexSpec(2, "l2", "ivf")  # type: ignore[arg-type]
    assert (spec.metric, spec.kind) == (Metric.L2, IndexKind.IVF)


def test_importing_the_room_does_not_import_faiss() -> None:
    code = "import sys, rag_accel.engines.retrieval; sys.exit('faiss' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_missing_faiss_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ImportError, match=r"pip install 'rag-accel\[local\]'"):
        DocumentIndex(IndexSpec(2))
