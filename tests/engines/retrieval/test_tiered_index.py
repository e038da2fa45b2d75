"""Indexes whose hot clusters lie in a faster memory, too: they answer as those without."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")
import torch

from rag_accel.engine_api import Document, ScoredDocument
from rag_accel.engines.retrieval import DocumentIndex, IndexSpec, Metric, load_index, save_index
from rag_accel.engines.retrieval.index import files
from rag_accel.engines.retrieval.vectors import learned_way
from rag_accel.engines.retrieval.vectors.device_lists import DeviceLists
from rag_accel.engines.retrieval.vectors.hot_clusters import EXCHANGED_EVERY
from rag_accel.engines.retrieval.vectors.inverted_list import InvertedList
from rag_accel.engines.retrieval.vectors.learned_way import LearnedWay
from rag_accel.engines.retrieval.vectors.list_table import ListTable
from rag_accel.errors import ConfigError, IndexFileError

DIMENSION, COUNT = 9, 300
SPEC = IndexSpec(
    DIMENSION, kind="ivf", train_size=COUNT, num_clusters=12, nprobe=3, hot="ram", hot_bytes=6_000
)


def vectors(count: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(count, DIMENSION)).astype(np.float32)


def documents(*numbers: int) -> list[Document]:
    return [Document(f"d{at}", f"text {at}", {"third": at % 3}) for at in numbers]


def in_memory(spec: IndexSpec = SPEC) -> DocumentIndex:
    index = DocumentIndex(spec)
    index.add(documents(*range(COUNT)), vectors(COUNT))
    return index


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_index(in_memory(), tmp_path / "index", "f")
    return tmp_path / "index"


def found(results: Sequence[Sequence[ScoredDocument]]) -> list[list[tuple[str, str, float]]]:
    return [[(hit.document.id, hit.document.text, hit.score) for hit in one] for one in results]


def assert_equal(index: DocumentIndex, other: DocumentIndex) -> None:
    queries = vectors(8, seed=1)
    assert len(index) == len(other)
    for k, where in ((5, None), (5, {"third": 1}), (400, None)):
        assert found(index.search(queries, k, where)) == found(other.search(queries, k, where))


def warm(index: DocumentIndex, calls: int = 4 * EXCHANGED_EVERY) -> None:
    """Search near one place until clusters were exchanged."""
    for query in vectors(calls, seed=2) * 0.1 + vectors(1, seed=3):
        index.search(query[None], 3)
    for thread in threading.enumerate():
        if thread.name == "rag-accel-clusters":
            thread.join()


#: lists of a file with copies in memory, and lists in memory with copies on a device of torch
TIERS = ["ram", "cpu"]


@pytest.fixture(autouse=True)
def used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a device be used, and lists be read ahead, whatever it costs."""
    monkeypatch.setattr(LearnedWay, "choose", lambda self, numbers: True)


@pytest.mark.parametrize("hot", TIERS)
@pytest.mark.parametrize("metric", [Metric.INNER_PRODUCT, Metric.L2])
def test_it_answers_as_one_without(tmp_path: Path, metric: Metric, hot: str) -> None:
    index = in_memory(replace(SPEC, metric=metric))
    save_index(index, tmp_path / "index", "f")
    mapped = load_index(tmp_path / "index", fingerprint="f", hot=hot)
    assert_equal(mapped, index)
    warm(mapped)
    assert mapped.tier_counts["hot_cluster_reads"] > 0
    assert 0 < mapped.tier_counts["hot_cluster_bytes"] <= SPEC.hot_bytes
    assert_equal(mapped, index)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(TIERS),
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.lists(st.integers(0, COUNT + 9), min_size=1, max_size=9)),
            st.tuples(st.just("delete"), st.lists(st.integers(0, COUNT + 9), max_size=9)),
            st.tuples(st.sampled_from(["warm", "load"]), st.just([])),
        ),
        max_size=8,
    ),
)
def test_edits_are_those_of_one_without(
    tmp_path_factory: pytest.TempPathFactory, hot: str, edits: list[tuple[str, list[int]]]
) -> None:
    path, index = tmp_path_factory.mktemp("tiered") / "index", in_memory()
    save_index(index, path, "f")
    mapped = load_index(path, hot=hot)
    for seed, (edit, numbers) in enumerate(edits, 10):
        if edit == "warm":
            warm(mapped, EXCHANGED_EVERY)
        elif edit == "load":
            save_index(mapped, path, "f")
            mapped = load_index(path, hot=hot)
        else:
            for one in (index, mapped):
                if edit == "add":
                    one.add(documents(*numbers), vectors(len(numbers), seed))
                else:
                    one.delete([f"d{at}" for at in numbers])
    assert_equal(mapped, index)
    ids = [f"d{at}" for at in range(COUNT + 10)]
    held, expected = mapped.vectors(ids), index.vectors(ids)
    assert held.keys() == expected.keys()
    assert all(np.array_equal(held[id], expected[id]) for id in expected)


@pytest.mark.parametrize("hot", TIERS)
def test_searches_while_it_is_edited_and_clusters_move_find_one_state(path: Path, hot: str) -> None:
    index, wrong, stop = load_index(path, hot=hot), list[Any](), threading.Event()
    query = vectors(1, seed=3)

    def search() -> None:
        while not stop.is_set():
            hits = index.search(query, 2)[0]
            if [hit.document.text for hit in hits] not in (["a", "a"], ["b", "b"]):
                wrong.append(hits)

    def put(text: str) -> None:
        index.add([Document(id, text) for id in ("x", "y")], 10 * np.concatenate([query, query]))

    put("a")
    threads = [threading.Thread(target=search) for _ in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(60):
        put("ab"[turn % 2])
    warm(index, 2 * EXCHANGED_EVERY)
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_an_index_that_is_trained_in_memory_has_its_copies_on_a_device() -> None:
    index = in_memory(replace(SPEC, hot="cpu"))
    warm(index)
    assert index.tier_counts["hot_cluster_reads"] > 0
    assert_equal(index, in_memory())
    (line,) = index.tier_text
    assert line.startswith("hot clusters on cpu: ")


class Lost:
    """A result on a device that is gone."""

    def cpu(self) -> Any:
        raise RuntimeError("CUDA error: device lost")


def fail(*args: Any) -> Any:
    raise RuntimeError("CUDA error: device lost")


@pytest.mark.parametrize(
    ("method", "broken"),
    [("_there", fail), ("begin", lambda *args: (Lost(), Lost())), ("copy", fail)],
)
def test_a_device_that_fails_is_left_and_no_search_is_lost(
    method: str, broken: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    index = in_memory(replace(SPEC, hot="cpu"))
    if method != "copy":
        warm(index)
    monkeypatch.setattr(DeviceLists, method, broken)
    warm(index)
    assert_equal(index, in_memory())
    reason = "hot clusters on cpu are not used: RuntimeError: CUDA error: device lost"
    assert index.tier_text == (reason,)
    assert [one.levelname for one in caplog.records] == ["WARNING"]


def test_a_search_here_that_fails_is_not_the_fault_of_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index = in_memory(replace(SPEC, hot="cpu"))
    warm(index)
    with monkeypatch.context() as patch:
        patch.setattr(ListTable, "scan", fail)
        with pytest.raises(RuntimeError, match="device lost"):
            index.search(vectors(1, seed=3), 3)
    assert index.tier_text[0].endswith("% of reads")
    assert_equal(index, in_memory())


def test_a_device_is_not_used_where_torch_may_round_products() -> None:
    index, before = in_memory(replace(SPEC, hot="cpu")), torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        warm(index)
        assert_equal(index, in_memory())
        assert "lower precision than 'highest'" in index.tier_text[0]
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    ("first_s", "second_s", "sizes"),
    [(1.0, 2.0, [10]), (2.0, 1.0, [10]), (1.0, 2.0, [10, 20]), (2.0, 1.0, [10, 20])],
)
def test_calls_are_made_the_faster_way_once_both_were_measured(
    first_s: float, second_s: float, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # of what this module has replaced
    learned, now = LearnedWay(), [0.0]
    monkeypatch.setattr(learned_way.time, "perf_counter", lambda: now[0])
    ways = list[bool]()
    for call in range(120):
        numbers = sizes[call % len(sizes)]
        ways.append(learned.choose(numbers))
        started = now[0]
        now[0] += numbers * (first_s if ways[-1] else second_s)
        learned.note(ways[-1], numbers, started)
    is_faster = first_s < second_s
    assert ways[10:].count(not is_faster) in (1, 2)  # now and then the slower one is tried


@pytest.mark.parametrize(
    ("owner", "method", "error"),
    [
        (threading.Thread, "start", RuntimeError("can't start new thread")),
        (InvertedList, "copy", MemoryError("of hot clusters")),
    ],
)
def test_searches_go_on_where_no_cluster_can_be_copied(
    owner: Any, method: str, error: Exception, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = load_index(path)

    def fail(*args: Any) -> Any:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(owner, method, fail)
        warm(index, 2 * EXCHANGED_EVERY)
    assert index.tier_counts["hot_cluster_bytes"] == 0
    assert_equal(index, in_memory())
    warm(index)
    assert index.tier_counts["hot_cluster_bytes"] > 0


@pytest.mark.parametrize("hot", ["cuda:99", "disk"])
def test_a_device_that_is_not_there_is_named(hot: str, path: Path) -> None:
    with pytest.raises(
        ConfigError, match=f"no device for copies of vectors; at hot; found '{hot}'"
    ):
        in_memory(replace(SPEC, hot=hot))
    with pytest.raises(ConfigError, match="no device for copies of vectors"):
        load_index(path, hot=hot)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("hot", TIERS)
def test_a_forked_child_searches_as_its_parent(path: Path, hot: str) -> None:
    index = load_index(path, hot=hot)
    warm(index)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            assert_equal(index, in_memory())
            warm(index, EXCHANGED_EVERY)
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_without_hot_it_is_read_into_memory(path: Path) -> None:
    index = load_index(path, hot=None)
    assert index.tier_counts == {}
    assert_equal(index, in_memory())


def test_a_file_in_memory_is_written_again_for_its_lists_once(tmp_path: Path) -> None:
    path = tmp_path / "index"
    save_index(in_memory(replace(SPEC, hot=None)), path, "f")
    mapped = load_index(path, fingerprint="f", hot="ram", hot_bytes=6_000)
    written = path.stat().st_ino
    assert_equal(mapped, in_memory())
    assert_equal(load_index(path, hot="ram", hot_bytes=6_000), in_memory())
    assert path.stat().st_ino == written


def test_what_another_process_writes_meanwhile_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, plain = tmp_path / "index", in_memory(replace(SPEC, hot=None))
    save_index(plain, path, "f")
    plain.delete(["d0"])
    read = files.read_parts

    def read_and_be_overtaken(*args: Any, **kwargs: Any) -> Any:
        parts = read(*args, **kwargs)
        monkeypatch.setattr(files, "read_parts", read)
        save_index(plain, path, "f")
        return parts

    monkeypatch.setattr(files, "read_parts", read_and_be_overtaken)
    assert_equal(load_index(path, hot="ram", hot_bytes=6_000), plain)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_file_in_memory_on_a_disk_that_is_not_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "index"
    save_index(in_memory(replace(SPEC, hot=None)), path, "f")
    tmp_path.chmod(0o500)
    with pytest.raises(IndexFileError, match=r"cannot be written again.*load it there once"):
        load_index(path, hot="ram")


def test_it_goes_on_with_its_own_file_when_another_takes_its_place(path: Path) -> None:
    index = load_index(path)
    other = in_memory()
    other.delete([f"d{at}" for at in range(100)])
    save_index(other, path, "f")
    assert_equal(index, in_memory())
    assert_equal(load_index(path), other)


def test_edits_of_another_process_are_not_overwritten(path: Path) -> None:
    index, other = load_index(path), load_index(path)
    index.delete(["d0"])
    other.delete(["d1"])
    save_index(other, path, "f")
    save_index(other, path, "f")
    with pytest.raises(IndexFileError, match=r"written again since it was loaded.*load it and"):
        save_index(index, path, "f")
    save_index(index, path.with_name("other"), "f")
    assert len(load_index(path).get(["d0", "d1"])) == 1


@pytest.mark.parametrize(
    ("numbers", "labels", "error"),
    [
        (None, 10**12, "has other documents"),
        (None, -1, "has other documents"),
        (np.nan, None, "has bad vectors: .*vector 0"),
    ],
)
@pytest.mark.parametrize("hot", ["ram", None])
def test_a_list_of_wrong_contents_with_a_right_checksum_is_named(
    path: Path,
    hot: str | None,
    numbers: float | None,
    labels: int | None,
    error: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make = InvertedList.of

    def forged(vectors: Any, own: Any) -> InvertedList:
        made = make(vectors, own)
        if numbers is not None:
            made.vectors[:] = numbers
        if labels is not None:
            made.labels[:] = labels
        return made

    monkeypatch.setattr(InvertedList, "of", forged)
    save_index(load_index(path), path, "f")
    monkeypatch.undo()
    with pytest.raises(IndexFileError, match=f"the list of cluster 0 {error}"):
        load_index(path, hot=hot).search(vectors(1), 3, nprobe=12)


def test_a_damaged_list_is_named_when_it_is_first_read(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096 + 8] ^= 1
    path.write_bytes(data)
    index = load_index(path)
    with pytest.raises(IndexFileError, match="the list of cluster 0 differs from its checksum"):
        index.search(vectors(1), 3, nprobe=12)
    with pytest.raises(IndexFileError, match="the list of cluster 0"):
        save_index(index, path.with_name("other"), "f")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"hot": 1}, r"where hot.*found 1; valid: 'ram', a device of torch"),
        ({"hot_bytes": 0}, "where hot_bytes.*an integer >= 1"),
        ({"kind": "flat"}, "codes=None, and kind='ivf'"),
        ({"codes": "sq8"}, "codes=None, and kind='ivf'"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error.replace("where ", "at ")):
        replace(SPEC, **options)


@pytest.mark.parametrize("hot", TIERS)
def test_less_memory_than_a_cluster_is_named(path: Path, hot: str) -> None:
    with pytest.raises(ConfigError, match=r"at hot_bytes.*found 100 bytes; valid: at least"):
        load_index(path, hot=hot, hot_bytes=100)


def test_documents_are_taken_whatever_their_clusters_exceed() -> None:
    index = in_memory(replace(SPEC, hot="cpu", hot_bytes=100))
    warm(index)
    assert index.tier_counts["hot_cluster_bytes"] == 0
    assert_equal(index, in_memory())


_LIMITED = """
import resource, sys, time
import numpy as np
from rag_accel.engine_api import Document
from rag_accel.engines.retrieval import load_index, save_index
path, limit = sys.argv[1], int(sys.argv[2])
load_index(path).search(np.ones((1, 2048), dtype=np.float32), 3)  # starts its threads
with open("/proc/self/status") as file:
    used = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (used + limit, used + limit))
started = time.perf_counter()
index = load_index(path)
opened_s = time.perf_counter() - started
query = np.ones((1, index.spec.dimension), dtype=np.float32)
for _ in range(120):
    index.search(np.random.default_rng(_).normal(size=query.shape).astype(np.float32), 3)
index.add([Document("new", "new")], 9 * query)
assert index.search(query, 1)[0][0].document.id == "new"
save_index(index, path, "f")
del index
assert load_index(path).search(query, 1)[0][0].document.id == "new"
print(opened_s)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
def test_three_times_the_memory_is_opened_searched_edited_and_saved(tmp_path: Path) -> None:
    dimension, count = 2_048, 18_000  # 147 MB of vectors
    spec = IndexSpec(
        dimension, kind="ivf", train_size=2_000, num_clusters=64, hot="ram", hot_bytes=4 << 20
    )
    index, random = DocumentIndex(spec), np.random.default_rng(0)
    for start in range(0, count, 2_000):
        some = [Document(f"d{at}", "") for at in range(start, start + 2_000)]
        index.add(some, random.normal(size=(2_000, dimension)).astype(np.float32))
    save_index(index, tmp_path / "index", "f")
    limit = 4 * dimension * count // 3  # beyond what a process has after a first search
    line = [sys.executable, "-c", _LIMITED, str(tmp_path / "index"), str(limit)]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr[-2000:]
