"""A shared scan finds what a float64 search of the same clusters finds, bit by bit."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from rag_accel.engines.retrieval import IndexKind, IndexSpec, Metric
from rag_accel.engines.retrieval.ivf_vectors import IvfVectors
from rag_accel.engines.retrieval.nearest import Hits, nearest
from rag_accel.engines.retrieval.scan import (
    candidates,
    cluster_scan,
    encode_clusters,
    plan,
    scan,
    walk,
)
from rag_accel.engines.retrieval.vectors import Scope
from rag_accel.errors import ConfigError, EngineOutputError

torch = pytest.importorskip("torch")

Found = list[tuple[list[int], list[float]]]


@pytest.fixture(scope="module", autouse=True)
def _one_torch_thread() -> Any:
    """Leave nothing to change in the test's own thread: a change takes longer than a scan."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def shown(hits: Sequence[Hits]) -> Found:
    return [(hit.labels.tolist(), hit.scores.tolist()) for hit in hits]


def brute_force(
    metric: Metric,
    world: tuple[Any, Any, Any],
    queries: Any,
    probes: Sequence[Any],
    ks: Sequence[int],
    allowed: Any = None,
) -> Found:
    """Score every vector of the visited clusters by itself, in float64."""
    vectors, offsets, labels = world
    results: Found = []
    for query, probe, k in zip(queries, probes, ks, strict=True):
        rows = [row for c in {*probe} - {-1} for row in range(offsets[c], offsets[c + 1])]
        if allowed is not None:
            rows = [row for row in rows if labels[row] in allowed]
        wide = vectors[rows].astype(np.float64)
        if metric is Metric.INNER_PRODUCT:
            scores = (wide * query.astype(np.float64)).sum(axis=-1)
        else:
            scores = 0.0 - ((wide - query.astype(np.float64)) ** 2).sum(axis=-1)
        order = sorted(range(len(rows)), key=lambda at: (-scores[at], labels[rows[at]]))
        order = order[: max(k, 0)]
        results.append(
            ([int(labels[rows[at]]) for at in order], [float(scores[at]) for at in order])
        )
    return results


def make_world(random: np.random.Generator, style: str, dimension: int) -> tuple[Any, Any, Any]:
    """Return vectors, offsets and labels of up to 12 clusters, some of them empty."""
    sizes = random.integers(0, 40, random.integers(1, 13)) * (random.random() < 0.9)
    count = int(sizes.sum())
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    centres = 3 * random.standard_normal((len(sizes), dimension))
    vectors = np.repeat(centres, sizes, axis=0) + 0.5 * random.standard_normal((count, dimension))
    if style == "uniform":
        vectors = random.uniform(-1, 1, (count, dimension))
    elif style == "whole":
        vectors = np.round(vectors)
    elif style == "far":
        vectors += 1000
    vectors = vectors.astype(np.float32)
    if count and style == "duplicates":
        vectors = vectors[random.integers(0, 1 + count // 8, count)]
    if count and style == "near ties":
        vectors[:] = vectors[0]
        vectors[:, 0] = np.nextafter(vectors[:, 0], random.choice([-9, 9], count).astype("f4"))
    if style == "adversarial":
        scale = random.choice([0, 1e-45, 1e-42, 1e-30, 1, 1, 1, 1e6, 1e14], count)
        vectors = (vectors * scale[:, None]).astype(np.float32)
        vectors[::5, 0] *= 100
    return vectors, offsets, random.permutation(3 * count)[:count]


STYLES = ("clustered", "uniform", "whole", "far", "duplicates", "near ties", "adversarial")


@st.composite
def searches(draw: st.DrawFn) -> tuple[Any, Any, list[Any], list[int], Any]:
    """Draw a world, queries (some equal to a vector), ragged probes and ks, and a filter."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dimension = draw(st.sampled_from([1, 3, 16, 50]))
    world = make_world(random, draw(st.sampled_from(STYLES)), dimension)
    count = draw(st.integers(1, 40))
    queries = random.standard_normal((count, dimension)).astype(np.float32)
    if len(world[0]):
        copied = random.random(count) < 0.5
        queries[copied] = world[0][random.integers(0, len(world[0]), int(copied.sum()))]
    queries[random.random(count) < 0.05] = 0
    clusters = len(world[1]) - 1
    probes = [random.integers(-1, clusters, random.integers(0, 12)) for _ in range(count)]
    ks = random.integers(-1, 15, count)
    ks[random.random(count) < 0.1] = 10_000
    allowed = random.choice(world[2], len(world[2]) // 3) if draw(st.booleans()) else None
    return world, queries, probes, ks.tolist(), allowed


@settings(max_examples=400, deadline=None)
@given(metric=st.sampled_from(Metric), search=searches(), data=st.data())
def test_a_scan_equals_a_float64_search(metric: Metric, search: Any, data: st.DataObject) -> None:
    world, queries, probes, ks, allowed = search
    found = scan(encode_clusters(*world), world[0], queries, probes, ks, metric, allowed=allowed)
    assert shown(found) == brute_force(metric, world, queries, probes, ks, allowed)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("style", STYLES)
def test_small_limits_and_more_threads_change_nothing(
    metric: Metric, style: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_scan, "WORTH_A_THREAD", 1)
    monkeypatch.setattr(cluster_scan, "MAX_QUERIES", 7)
    monkeypatch.setattr(walk, "MAX_CANDIDATES", 20)
    monkeypatch.setattr(walk, "MAX_RAW", 8)
    monkeypatch.setattr(plan, "MAX_PAIRS", 30)
    monkeypatch.setattr(candidates, "MAX_RESCORED", 50)
    random = np.random.default_rng(0)
    world = make_world(random, style, 16)
    queries = random.standard_normal((30, 16)).astype(np.float32)
    clusters = len(world[1]) - 1
    probes = [random.permutation(clusters)[:5] for _ in queries]
    ks = random.integers(0, 9, 30).tolist()
    codes = encode_clusters(*world)
    found = scan(codes, world[0], queries, probes, ks, metric, threads=threads)
    assert shown(found) == brute_force(metric, world, queries, probes, ks)


def test_a_scan_finds_bit_by_bit_what_the_index_finds(metric: Metric) -> None:
    random = np.random.default_rng(1)
    vectors = random.standard_normal((3000, 48)).astype(np.float32)
    vectors[1500:1600] = vectors[:100]
    spec = IndexSpec(48, metric, IndexKind.IVF, num_clusters=40, train_size=3000)
    index = IvfVectors.train(spec, np.arange(3000, dtype=np.int64), vectors)
    labels, clusters = index.assignments()
    order = np.argsort(clusters, kind="stable")
    offsets = np.searchsorted(clusters[order], np.arange(index.num_clusters + 1))
    world = vectors[order], offsets, labels[order]
    queries = np.concatenate([vectors[::60], random.standard_normal((50, 48))]).astype(np.float32)
    by_centroid = index.centroids @ queries.T
    if metric is Metric.L2:
        by_centroid -= 0.5 * np.square(index.centroids).sum(axis=1)[:, None]
    probes = np.argsort(-by_centroid, axis=0)[:8].T
    found = scan(encode_clusters(*world), world[0], queries, probes, [10] * 100, metric)
    assert shown(found) == shown(nearest(index, queries, [10] * 100, Scope(3000, nprobe=8)))


def test_few_of_many_vectors_are_scored_again(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(2)
    sizes = np.full(50, 200)
    centres = random.standard_normal((50, 64))
    vectors = np.repeat(centres, sizes, axis=0) + random.standard_normal((10_000, 64))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    codes = encode_clusters(vectors, np.arange(0, 10_001, 200), np.arange(10_000))
    scored: list[int] = []
    score = candidates.exact_scores

    def record(metric: Metric, queries: Any, rows: Any) -> Any:
        scored.append(len(rows))
        return score(metric, queries, rows)

    monkeypatch.setattr(candidates, "exact_scores", record)
    queries = vectors[::500]
    scan(codes, vectors, queries, [range(50)] * 20, [5] * 20, Metric.INNER_PRODUCT)
    assert sum(scored) < 20 * 8


def test_what_nobody_visits_is_not_found_though_it_lies_between() -> None:
    # Three clusters on a line; the one in the middle holds the best vectors and is not visited.
    vectors = np.asarray([[1, 0], [5, 0], [2, 0]], dtype=np.float32)
    codes = encode_clusters(vectors, [0, 1, 2, 3], [7, 8, 9])
    (hits,) = scan(codes, vectors, vectors[:1], [[0, 2]], [3], Metric.INNER_PRODUCT)
    assert hits.labels.tolist() == [9, 7]


def test_torch_keeps_its_threads(metric: Metric, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_scan, "WORTH_A_THREAD", 1)
    random = np.random.default_rng(3)
    world = make_world(random, "clustered", 16)
    codes = encode_clusters(*world)
    found: list[int] = []

    def work() -> None:
        torch.set_num_threads(2)
        every = range(codes.num_clusters)
        scan(codes, world[0], world[0][:4], [every] * 4, [3] * 4, metric, threads=2)
        found.append(torch.get_num_threads())

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    torch.set_num_threads(1)
    assert found == [2]


def test_an_error_in_a_helping_thread_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_scan, "WORTH_A_THREAD", 1)
    world = make_world(np.random.default_rng(4), "clustered", 4)

    def broken(self: walk.Walker, pieces: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            return candidates.NO_CANDIDATES
        raise MemoryError("here")

    monkeypatch.setattr(walk.Walker, "walk", broken)
    codes = encode_clusters(*world)
    probes = [range(codes.num_clusters)]
    with pytest.raises(MemoryError, match="here"):
        scan(codes, world[0], world[0][:1], probes, [1], Metric.L2, threads=2)


def test_no_queries_and_no_vectors_are_no_error(metric: Metric) -> None:
    nothing = np.empty((0, 3), dtype=np.float32)
    codes = encode_clusters(nothing, [0, 0], np.empty(0, dtype=np.int64))
    assert scan(codes, nothing, nothing, [], [], metric) == []
    found = scan(codes, nothing, np.ones((1, 3), dtype=np.float32), [[0]], [2], metric)
    assert shown(found) == [([], [])]


@pytest.mark.parametrize(
    ("change", "error", "where"),
    [
        ({"probes": [[0], [3]]}, ConfigError, "probes[1]"),
        ({"probes": [[0], [-2]]}, ConfigError, "probes[1]"),
        ({"probes": [[0], [0.5]]}, ConfigError, "probes[1]"),
        ({"probes": [[0]]}, ConfigError, "probes"),
        ({"ks": [1]}, ConfigError, "ks"),
        ({"threads": 0}, ConfigError, "threads"),
        ({"vectors": np.ones((4, 2), dtype=np.float32)}, ConfigError, "vectors"),
        ({"vectors": np.ones((5, 2))}, ConfigError, "vectors"),
        ({"vectors": np.ones((2, 5), dtype=np.float32).T}, ConfigError, "vectors"),
        ({"queries": [[1, 2], [np.nan, 1]]}, EngineOutputError, "queries[1]"),
        ({"queries": [[1, 2, 3]]}, ConfigError, "index"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, Any], error: type, where: str) -> None:
    vectors = np.ones((5, 2), dtype=np.float32)
    given_: dict[str, Any] = {
        "codes": encode_clusters(vectors, [0, 2, 2, 5], range(5)),
        "vectors": vectors,
        "queries": vectors[:2],
        "probes": [[0], [2]],
        "ks": [1, 1],
        "metric": Metric.L2,
    }
    with pytest.raises(error) as caught:
        scan(**given_ | change)
    assert caught.value.where == where
