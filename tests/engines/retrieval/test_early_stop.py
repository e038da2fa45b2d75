"""Early stops of searches: calibration, vectors left unread, fidelity, files, bad input."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_accel.engine_api import Document
from rag_accel.engines.retrieval import (
    DocumentIndex,
    IndexKind,
    IndexSnapshot,
    IndexSpec,
    Metric,
    RetrievalEngine,
    load_index,
    save_index,
)
from rag_accel.engines.retrieval.index.file_format import read_footer
from rag_accel.engines.retrieval.vectors import early_stop
from rag_accel.engines.retrieval.vectors.cluster_scans import ClusterScan
from rag_accel.engines.retrieval.vectors.early_stop import leave_far_clusters
from rag_accel.engines.retrieval.vectors.spec import Vectors
from rag_accel.engines.retrieval.vectors.stop_calibration import (
    CHECKED_OF,
    LEAST_OBSERVED,
    MOST_OBSERVED,
    Calibration,
    chance_of,
)
from rag_accel.errors import ConfigError, EngineOutputError, IndexFileError
from rag_accel.requests.engines import owned
from rag_accel.scheduler.messages import EngineName

COUNT, DIMENSION, K = 3000, 16, 5
EMPTY: dict[str, list[float]] = {"gaps": [], "checked": []}


@pytest.fixture(autouse=True)
def short_searches_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let searches of a small index pass for long ones."""
    monkeypatch.setattr(early_stop, "LEAST_NUMBERS", 1)


def drawn(count: int, seed: int) -> Vectors:
    """Return unit vectors around 60 centres."""
    centres = np.random.default_rng(0).standard_normal((60, DIMENSION))
    random = np.random.default_rng(seed)
    vectors = centres[random.integers(0, 60, count)] + random.normal(0, 0.6, (count, DIMENSION))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors.astype(np.float32)


def documents(count: int, first: int = 0) -> list[Document]:
    numbers = range(first, first + count)
    return [Document(f"d{number}", "", {"odd": number % 2}) for number in numbers]


def spec_of(metric: Metric = Metric.INNER_PRODUCT, **settings: Any) -> IndexSpec:
    settings = {"nprobe": 40, "train_size": COUNT, "num_clusters": 60, "stop": 0.95} | settings
    return IndexSpec(DIMENSION, metric, IndexKind.IVF, **settings)


@cache
def trained(metric: Metric, num_clusters: int) -> IndexSnapshot:
    index = DocumentIndex(spec_of(metric, num_clusters=num_clusters))
    index.add(documents(COUNT), drawn(COUNT, 1))
    return index.snapshot()


def made(
    metric: Metric = Metric.INNER_PRODUCT, num_clusters: int = 60, **settings: Any
) -> DocumentIndex:
    spec = spec_of(metric, num_clusters=num_clusters, **settings)
    return DocumentIndex.from_snapshot(replace(trained(metric, num_clusters), spec=spec))


def ids(index: DocumentIndex, queries: Vectors, k: int = K, **scope: Any) -> list[list[str]]:
    return [[hit.document.id for hit in hits] for hits in index.search(queries, k, **scope)]


def share_equal(ours: list[list[str]], others: list[list[str]]) -> float:
    return float(np.mean([set(a) == set(b) for a, b in zip(ours, others, strict=True)]))


@pytest.mark.parametrize("metric", list(Metric))
def test_stopped_searches_read_less_and_keep_their_share(metric: Metric) -> None:
    index, full = made(metric), made(metric, stop=None)
    index.calibrate(drawn(600, 2), K)
    queries = drawn(600, 3)
    found = ids(index, queries)
    (report,) = index.stopping
    assert share_equal(found, ids(full, queries)) >= 0.93
    assert report.share_read < 0.7
    assert (report.least_k, report.checked) == (4, 600 // CHECKED_OF)
    assert report.observed == 600 + report.checked
    counts = index.stop_counts
    assert counts["stopped_searches"] == 600
    assert counts["stop_checks"] == report.checked
    assert counts["vectors_unread"] > 0


def test_an_index_learns_from_the_searches_that_it_is_asked_for() -> None:
    index, full, queries = made(), made(stop=None), drawn(LEAST_OBSERVED, 4)
    assert ids(index, queries) == ids(full, queries), "read in full while it learns"
    assert index.stop_counts["stopped_searches"] == 0
    index.search(queries[:3], K)
    assert index.stop_counts["stopped_searches"] == 3


def test_a_stopped_search_finds_the_same_alone_and_in_a_batch() -> None:
    index = made()
    index.calibrate(drawn(300, 2), K)
    queries = drawn(20, 3)
    assert ids(index, queries) == [ids(index, query[None, :])[0] for query in queries]


def test_filtered_searches_and_those_with_an_nprobe_are_never_stopped() -> None:
    index, full, queries = made(), made(stop=None), drawn(40, 3)
    index.calibrate(drawn(300, 2), K)
    scopes: list[dict[str, Any]] = [{"where": {"odd": 1}}, {"nprobe": 7}]
    for scope in scopes:
        assert ids(index, queries, **scope) == ids(full, queries, **scope)
    assert index.stop_counts["stopped_searches"] == 0


def test_a_larger_k_than_was_calibrated_is_read_in_full() -> None:
    index, full, queries = made(), made(stop=None), drawn(40, 3)
    index.calibrate(drawn(300, 2), K)
    assert ids(index, queries, 8) == ids(full, queries, 8)
    assert [len(found) for found in ids(index, queries[:2], COUNT + 5)] == [COUNT] * 2
    assert index.search(queries[:2], 0) == [[], []]
    assert index.stop_counts["stopped_searches"] == 0


def test_short_searches_are_read_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_stop, "LEAST_NUMBERS", COUNT * DIMENSION)
    index = made()
    index.calibrate(drawn(300, 2), K)
    index.search(drawn(5, 3), K)
    assert index.stop_counts["stopped_searches"] == 0


@pytest.mark.parametrize("metric", list(Metric))
def test_equal_scores_are_settled(metric: Metric) -> None:
    index = DocumentIndex(spec_of(metric))
    vectors = np.repeat(drawn(COUNT // 50, 1), 50, axis=0)
    index.add(documents(COUNT), vectors)
    index.calibrate(drawn(300, 2), K)
    queries = drawn(30, 3)
    for hits in index.search(queries, K):
        numbers = [int(hit.document.id[1:]) for hit in hits]
        assert numbers == sorted(numbers)
        assert len(set(numbers)) == K
        assert len({hit.score for hit in hits}) == 1
    assert index.stop_counts["stopped_searches"] == 30


def test_one_vector_for_all_documents() -> None:
    index = DocumentIndex(spec_of())
    index.add(documents(COUNT), np.repeat(drawn(1, 1), COUNT, axis=0))
    index.calibrate(drawn(300, 2), K)
    assert ids(index, drawn(3, 3)) == [[f"d{number}" for number in range(K)]] * 3


def test_edits_are_seen_and_many_of_them_are_learned_again() -> None:
    index = made()
    index.calibrate(drawn(300, 2), K)
    query = drawn(1, 9)
    index.add([Document("new", "")], query)
    assert ids(index, query)[0][0] == "new"
    assert index.stop_counts["stopped_searches"] == 1
    index.delete(["new"])
    assert "new" not in ids(index, query)[0]
    assert index.stopping
    index.add(documents(COUNT // 4), drawn(COUNT // 4, 5))
    assert not index.stopping, "a quarter has changed"


def test_a_stop_that_misses_its_share_learns_again() -> None:
    index = made(stop=0.98)
    saved = dict(index.snapshot().calibration or {})
    saved["calibrations"] = {"6": {"gaps": [0.0] * MOST_OBSERVED, "checked": []}}
    index = DocumentIndex.from_snapshot(replace(index.snapshot(), calibration=saved))
    while index.stopping[0].slack is not None:
        assert index.stop_counts["stopped_searches"] < 64 * CHECKED_OF, "it goes on missing"
        index.search(drawn(CHECKED_OF, index.stop_counts["stopped_searches"]), 40)
    assert index.stop_counts["stop_checks_equal"] < index.stop_counts["stop_checks"]
    assert index.stopping[0].checked == 0


def test_a_calibration_is_saved_and_loaded(tmp_path: Path) -> None:
    index = made()
    index.calibrate(drawn(300, 2), K)
    save_index(index, tmp_path / "index", "embedder")
    loaded = load_index(tmp_path / "index")
    assert loaded.spec == index.spec
    assert loaded.stopping[0].slack == index.stopping[0].slack
    queries = drawn(20, 3)
    assert ids(loaded, queries) == ids(index, queries)
    assert loaded.stop_counts["stopped_searches"] == 20
    other = replace(index.snapshot(), spec=replace(index.spec, stop=0.98))
    (report,) = DocumentIndex.from_snapshot(other).stopping
    assert report.slack is not None
    assert report.slack >= (index.stopping[0].slack or 0)


def test_older_readers_know_every_field_of_a_saved_spec(tmp_path: Path) -> None:
    save_index(made(stop=None), tmp_path / "index", "embedder")
    with (tmp_path / "index").open("rb") as file:
        footer = read_footer(file, tmp_path / "index")
    assert "stop" not in footer["spec"]
    assert footer["stop"] is None


def test_a_calibration_of_other_clusters_is_refused() -> None:
    index, other = made(), made(num_clusters=50)
    index.calibrate(drawn(300, 2), K)
    foreign = replace(other.snapshot(), calibration=index.snapshot().calibration)
    with pytest.raises(ConfigError, match="does not belong to the index") as caught:
        DocumentIndex.from_snapshot(foreign)
    assert "found clusters" in str(caught.value).replace(":", "")
    assert "calibrate the index again" in str(caught.value)
    DocumentIndex.from_snapshot(replace(foreign, calibration=None))


@pytest.mark.parametrize("gaps", [[float("nan")], [-1.0], ["far"], None, [float("inf")]])
def test_a_calibration_that_holds_no_gaps_is_refused(gaps: object, tmp_path: Path) -> None:
    index = made()
    index.calibrate(drawn(10, 2), K)
    saved = dict(index.snapshot().calibration or {})
    saved["calibrations"] = {"3": {"gaps": gaps, "checked": []}}
    with pytest.raises(ConfigError, match="does not belong"):
        DocumentIndex.from_snapshot(replace(index.snapshot(), calibration=saved))


@pytest.mark.parametrize("change", [{"changed": float("inf")}, {"calibrations": {"0": EMPTY}}])
def test_a_calibration_in_another_form_is_refused(change: dict[str, Any]) -> None:
    index = made()
    index.calibrate(drawn(10, 2), K)
    calibration = {**(index.snapshot().calibration or {}), **change}
    foreign = replace(index.snapshot(), calibration=calibration)
    with pytest.raises(ConfigError, match="does not belong"):
        DocumentIndex.from_snapshot(foreign)


def test_a_damaged_calibration_is_a_damaged_file(tmp_path: Path) -> None:
    index = made()
    index.calibrate(drawn(10, 2), K)
    save_index(index, tmp_path / "index", "embedder")
    data = (tmp_path / "index").read_bytes()
    (tmp_path / "index").write_bytes(data.replace(b'"changed": 0', b'"changed": 9'))
    with pytest.raises(IndexFileError, match="calibration"):
        load_index(tmp_path / "index")


@pytest.mark.parametrize("stop", [0.5, 1, 1.0, 0, -1, True, "0.98", float("nan")])
def test_a_stop_out_of_range_is_refused(stop: Any) -> None:
    with pytest.raises(ConfigError, match="stop"):
        spec_of(stop=stop)


def test_only_an_index_that_reads_clusters_of_vectors_stops() -> None:
    with pytest.raises(ConfigError, match="kind 'flat'"):
        IndexSpec(DIMENSION, stop=0.98)
    with pytest.raises(ConfigError, match="codes 'sq8'"):
        spec_of(codes="sq8")


def test_calibrating_in_vain_is_refused() -> None:
    with pytest.raises(ConfigError, match="do not stop early"):
        made(stop=None).calibrate(drawn(3, 2), K)
    untrained = DocumentIndex(spec_of())
    with pytest.raises(ConfigError, match=f"{COUNT} documents to train"):
        untrained.calibrate(drawn(3, 2), K)
    assert untrained.search(drawn(2, 2), K) == [[], []]
    with pytest.raises(EngineOutputError, match="nan"):
        made().calibrate(np.full((1, DIMENSION), np.nan), K)


def test_the_share_read_and_its_fidelity_are_told() -> None:
    index = made()
    named = owned(EngineName("search"), engine := RetrievalEngine(index))
    assert named.describe is not None
    assert list(named.describe()) == []
    index.calibrate(drawn(100, 2), K)
    assert list(named.describe()) == [
        "searches for 4 to 7 results stop early: learning, 100 read in full"
    ]
    index.calibrate(drawn(300, 3), K)
    index.search(drawn(CHECKED_OF, 4), K)
    (line,) = named.describe()
    assert "% of the vectors read; " in line
    assert "1 compared, 100.0% of these found the same documents" in line
    assert engine.counts["stopped_searches"] == CHECKED_OF
    assert "stopped_searches" not in RetrievalEngine(made(stop=None)).counts


@settings(max_examples=100, deadline=None)
@given(
    scores=st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=20),
    best=st.floats(-1, 1, width=32),
    slacks=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    metric=st.sampled_from(list(Metric)),
    seed=st.integers(0, 9),
)
def test_a_larger_slack_or_a_worse_best_never_reads_less(
    scores: list[float],
    best: float,
    slacks: tuple[float, float],
    metric: Metric,
    seed: int,
) -> None:
    def left(best: float, slack: float, order: Any) -> set[int]:
        coarse = np.asarray(scores, np.float32)[order]
        raw = coarse if metric is Metric.INNER_PRODUCT else -coarse
        query = np.zeros(DIMENSION, np.float32)
        scan = ClusterScan(query, 1, order, raw, np.ones(len(scores), np.int64))
        scan.take(np.asarray([best], np.float32), np.zeros(1, np.int64))
        leave_far_clusters(scan, 1, slack, metric)
        return set(scan.clusters.tolist())

    plain = np.arange(len(scores))
    less, more = sorted(slacks)
    assert left(best, less, plain) <= left(best, more, plain)
    assert left(best, less, plain) <= left(best - 0.5, less, plain)
    order = np.random.default_rng(seed).permutation(len(scores))
    assert left(best, less, plain) == left(best, less, order)


@pytest.mark.parametrize("share", [0.9, 0.98, 0.999])
def test_the_slack_is_the_conformal_quantile(share: float) -> None:
    calibration, gaps = Calibration(share), np.random.default_rng(1).random(1000)
    for gap in gaps.tolist():
        if len(calibration.gaps) < max(LEAST_OBSERVED, share / (1 - share)):
            assert calibration.slack is None
        calibration.observe(gap)
    assert calibration.slack is not None
    count = int(np.count_nonzero(gaps <= calibration.slack))
    assert (count - 1) / 1001 < share <= count / 1001
    for gap in np.full(2 * MOST_OBSERVED, 2.0).tolist():
        calibration.observe(gap)
    assert calibration.slack == 2.0
    assert len(calibration.gaps) == MOST_OBSERVED


def test_a_share_that_few_searches_cannot_show_waits_for_more() -> None:
    calibration = Calibration(0.9995, [0.1] * 1998)
    assert calibration.slack is None
    calibration.observe(0.1)
    calibration.observe(0.1)
    assert calibration.slack == 0.1


def test_a_stop_is_kept_through_misses_that_may_be_chance() -> None:
    assert chance_of(0, 10, 0.02) == 1.0
    assert chance_of(1, 2, 0.5) == 0.75
    calibration = Calibration(0.98, [0.1] * 300)
    for is_equal in [True] * 60 + [False, False] + [True] * 60 + [False]:
        calibration.check(is_equal)
    assert calibration.slack == 0.1
    missed = 3
    while calibration.checked:
        calibration.check(False)
        missed += 1
    assert calibration.slack is None
    assert 5 < missed < 12


def test_threads_search_an_index_that_is_edited_and_learned() -> None:
    index, queries = made(), drawn(64, 3)

    def search(turn: int) -> None:
        for hits in index.search(queries[turn::4], K):
            assert len({hit.document.id for hit in hits}) == K
        if turn == 0:
            index.add([Document("new", "")], drawn(1, 8))
            index.delete(["new"])
        index.calibrate(queries[turn::4], K)

    with ThreadPoolExecutor(4) as threads:
        for _ in range(8):
            list(threads.map(search, range(4)))
    assert index.stop_counts["stopped_searches"] > 0
    (report,) = index.stopping
    assert report.observed == MOST_OBSERVED or report.observed >= 8 * 64


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_stops_searches_while_its_parent_notes_one() -> None:
    index = made()
    index.calibrate(drawn(300, 2), K)
    held, leave = threading.Event(), threading.Event()

    def note() -> None:
        assert index._stop is not None
        with index._stop._lock.lock:
            held.set()
            leave.wait(60)

    other = threading.Thread(target=note)
    other.start()
    held.wait(60)
    child = os.fork()
    if not child:
        signal.alarm(60)  # a lock held for ever ends the child
        os._exit(0 if index.search(drawn(1, 3), K) and index.stopping else 1)
    status = os.waitpid(child, 0)[1]
    leave.set()
    other.join()
    assert status == 0
