"""Searches and changes from many threads at once: a search sees before or after, never a mix."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import faiss
import numpy as np
import pytest

from rag_accel.engine_api import Document
from rag_accel.engines.retrieval import DocumentIndex, IndexKind, IndexSpec
from rag_accel.engines.retrieval.vectors.flat import FlatVectors
from rag_accel.engines.retrieval.vectors.ivf import IvfVectors

Maker = Callable[..., Any]

WAIT_S = 60.0
GROUP = 10


def _run_against(change: Callable[[int], None], search: Callable[[], None]) -> None:
    """Make 60 changes while three threads search; each searches at least once."""
    stop = threading.Event()

    def keep_searching() -> None:
        faiss.omp_set_num_threads(1)
        search()
        while not stop.is_set():
            search()

    with ThreadPoolExecutor(3) as pool:
        searchers = [pool.submit(keep_searching) for _ in range(3)]
        try:
            for number in range(60):
                change(number)
        finally:
            stop.set()
        for searcher in searchers:
            searcher.result(WAIT_S)


@pytest.fixture(params=["flat", "ivf", "sq8"])
def big_spec(request: pytest.FixtureRequest) -> IndexSpec:
    """Configure each kind of index, and one with clusters and codes."""
    if request.param == "flat":
        return IndexSpec(32)
    codes = "sq8" if request.param == "sq8" else None
    clusters = {"num_clusters": 16, "nprobe": 16, "train_size": 2000}
    return IndexSpec(32, kind=IndexKind.IVF, codes=codes, **clusters)


def _big_index(spec: IndexSpec, make_documents: Maker, make_vectors: Maker) -> DocumentIndex:
    index = DocumentIndex(spec)
    index.add(make_documents(2000), make_vectors(2000, dimension=32))
    return index


def test_a_search_sees_all_of_a_replacement_or_nothing_of_it(
    big_spec: IndexSpec, make_documents: Maker, make_vectors: Maker
) -> None:
    index = _big_index(big_spec, make_documents, make_vectors)
    best = np.full((GROUP, 32), 100.0, dtype=np.float32)

    def replace(number: int) -> None:
        # Scattered ids, so that each change touches several places (and clusters) of the index.
        documents = [Document(f"d{place * 150}", str(number)) for place in range(GROUP)]
        index.add(documents, best * (1 + number % 7))

    def search() -> None:
        (row,) = index.search(best[:1], GROUP)
        versions = Counter((hit.document.text, hit.score) for hit in row)
        assert list(versions.values()) == [GROUP], versions

    replace(0)
    _run_against(replace, search)


def test_a_search_sees_all_of_an_addition_or_deletion_or_nothing_of_it(
    big_spec: IndexSpec, make_documents: Maker, make_vectors: Maker
) -> None:
    index = _big_index(big_spec, make_documents, make_vectors)
    best = np.full((GROUP, 32), 100.0, dtype=np.float32)
    ids = [f"new{place}" for place in range(GROUP)]

    def change(number: int) -> None:
        if number % 2:
            assert index.delete(ids) == GROUP
        else:
            index.add([Document(id, "", {"new": True}) for id in ids], best)

    def search() -> None:
        (plain,) = index.search(best[:1], GROUP)
        assert sum(hit.document.id in ids for hit in plain) in (0, GROUP)
        (filtered,) = index.search(best[:1], 99, where={"new": True})
        assert len(filtered) in (0, GROUP)
        assert len(index.get(ids)) in (0, GROUP)

    _run_against(change, search)
    assert len(index) == 2000


def test_a_change_that_comes_during_a_search_waits_for_it(
    big_spec: IndexSpec,
    make_documents: Maker,
    make_vectors: Maker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index = _big_index(big_spec, make_documents, make_vectors)
    vectors = FlatVectors if big_spec.kind is IndexKind.FLAT else IvfVectors
    name = "fetch_coded" if big_spec.codes else "fetch"
    fetch = getattr(vectors, name)
    deletion = threading.Thread(target=lambda: index.delete(f"d{number}" for number in range(2000)))

    def fetch_late(self: Any, *arguments: Any) -> Any:
        fetched = fetch(self, *arguments)
        deletion.start()
        deletion.join(0.2)  # without a lock it would be over by now, and the documents gone
        return fetched

    monkeypatch.setattr(vectors, name, fetch_late)
    (row,) = index.search(np.ones((1, 32)), 5)
    assert len(row) == 5
    deletion.join(WAIT_S)
    assert len(index) == 0


def test_searches_go_on_while_clusters_are_trained(
    make_documents: Maker, make_vectors: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = DocumentIndex(IndexSpec(6, kind=IndexKind.IVF, num_clusters=4, train_size=40))
    training, go_on = threading.Event(), threading.Event()
    train = IvfVectors.train

    def train_when_told(*arguments: Any) -> IvfVectors:
        training.set()
        assert go_on.wait(WAIT_S)
        return train(*arguments)

    monkeypatch.setattr(IvfVectors, "train", train_when_told)
    adding = threading.Thread(target=index.add, args=(make_documents(60), make_vectors(60)))
    adding.start()
    try:
        assert training.wait(WAIT_S)
        assert len(index.search(np.ones((1, 6)), 5)[0]) == 5
        assert not index.is_trained
    finally:
        go_on.set()
        adding.join(WAIT_S)
    assert index.is_trained


def test_concurrent_adders_lose_nothing(kind: IndexKind, make_vectors: Maker) -> None:
    index = DocumentIndex(IndexSpec(6, kind=kind, num_clusters=4, train_size=50))

    def add(thread: int) -> None:
        for number in range(25):
            index.add([Document(f"{thread}-{number}", "")], make_vectors(1, seed=number))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(4)))
    assert (len(index), index.version) == (100, 100)
    (row,) = index.search(np.ones((1, 6)), 200)
    assert len({hit.document.id for hit in row}) == 100
