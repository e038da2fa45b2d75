"""A change that is interrupted, wherever and however often, is made whole or not at all."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from change_harness import (
    WORDS,
    Change,
    Changes,
    Entry,
    check,
    check_words,
    contents_of,
    entry,
    filled,
    found,
)
from interrupting import Interrupt, interrupted, points, request_interrupt

from rag_accel.engine_api import Document
from rag_accel.engines.retrieval import DocumentIndex, IndexKind, IndexSpec, load_index, save_index
from rag_accel.engines.retrieval.hybrid.lexical import LexicalIndex
from rag_accel.engines.retrieval.vectors.flat import FlatVectors
from rag_accel.engines.retrieval.vectors.ivf import IvfVectors

WAIT_S = 60.0


def _entries(*ids: str) -> tuple[Entry, ...]:
    rng = random.Random("".join(ids))
    return tuple(entry(rng, id, "changed") for id in ids)


CHANGES = {
    "add": Change(_entries("n1", "n2")),
    "replace": Change(_entries("d3", "d0")),
    "both": Change(_entries("d5", "n1", "d3")),
    "delete": Change(deleted=("d1", "unknown", "d5")),
}


def _num_points(kind: IndexKind, change: Change, count: int = 14, codes: str | None = None) -> int:
    index, _ = filled(kind, count, codes)
    return points(lambda: change.make(index))


def _check_all_or_nothing(
    kind: IndexKind, change: Change, *turns: int, codes: str | None = None
) -> None:
    index, before = filled(kind, codes=codes)
    lexical = LexicalIndex(index)
    lexical.search(WORDS, 1)
    error = interrupted(lambda: change.make(index), *turns)
    assert error is not None
    contents = contents_of(index, before, change.after(before))
    check_words(lexical, contents)
    for more in (Change(_entries("more", "d2")), Change(deleted=("d2", "d4")), change):
        more.make(index)
        contents = more.after(contents)
        check(index, contents)
    del error  # only now are the frames of the interrupted change gone


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("step", [23, pytest.param(1, marks=pytest.mark.slow)])
def test_an_interrupt_at_any_point_leaves_all_or_nothing(
    kind: IndexKind, name: str, step: int
) -> None:
    for turn in range(1, _num_points(kind, CHANGES[name]) + 1, step):
        _check_all_or_nothing(kind, CHANGES[name], turn)


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("step", [43, pytest.param(1, marks=pytest.mark.slow)])
def test_an_interrupt_at_any_point_leaves_codes_and_vectors_together(name: str, step: int) -> None:
    change = CHANGES[name]
    for turn in range(1, _num_points(IndexKind.IVF, change, codes="sq8") + 1, step):
        _check_all_or_nothing(IndexKind.IVF, change, turn, codes="sq8")


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("count", [8, pytest.param(80, marks=pytest.mark.slow)])
def test_interrupts_that_meet_the_undoing_leave_all_or_nothing(
    kind: IndexKind, name: str, count: int
) -> None:
    end, rng = _num_points(kind, CHANGES[name]), random.Random(count)
    for _ in range(count):
        first = rng.randint(1, end)
        _check_all_or_nothing(kind, CHANGES[name], first, first + 1, first + rng.randint(2, 150))


@pytest.mark.parametrize("step", [41, pytest.param(1, marks=pytest.mark.slow)])
def test_an_interrupt_of_the_training_leaves_all_or_nothing(step: int) -> None:
    change = CHANGES["both"]
    for turn in range(1, _num_points(IndexKind.IVF, change, 11) + 1, step):
        index, before = filled(IndexKind.IVF, 11)
        error = interrupted(lambda index=index: change.make(index), turn)
        contents = contents_of(index, before, change.after(before))
        more = Change(_entries("more", "again"))
        more.make(index)
        check(index, more.after(contents))
        assert index.is_trained
        del error


@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_many_changes_interrupted_anywhere_leave_a_sound_index(
    kind: IndexKind, count: int, tmp_path: Path
) -> None:
    rng = random.Random(f"{kind} {count}")
    changes, (index, contents) = Changes(rng), filled(kind)
    lexical = LexicalIndex(index)
    errors: list[Any] = []
    while len(errors) < count:
        change = changes.next(contents)
        error = interrupted(
            lambda index=index, change=change: change.make(index), rng.randint(1, 500)
        )
        after = change.after(contents)
        contents = contents_of(index, contents, after) if error else after
        if error is None:
            check(index, contents)
            continue
        errors.append(error)
        if len(errors) % 20 == 0:
            check_words(lexical, contents)
            save_index(index, tmp_path / "index", "")
            loaded = load_index(tmp_path / "index")
            check(loaded, contents)
            changes.next(contents).make(loaded)


@contextmanager
def _interrupted_now_and_then(rng: random.Random) -> Iterator[threading.Event]:
    """Interrupt the calling thread at random moments while the event that is given is set."""
    thread, is_open, is_over = threading.get_ident(), threading.Event(), threading.Event()

    def run() -> None:
        while not is_over.is_set():
            if is_open.wait(0.01) and not is_over.wait(rng.uniform(0, 0.002)) and is_open.is_set():
                is_open.clear()
                request_interrupt(thread)

    interrupter = threading.Thread(target=run)
    # An interrupt that comes in a callback of the garbage collector is reported and lost.
    gc.disable()
    interrupter.start()
    try:
        yield is_open
    finally:
        is_over.set()
        interrupter.join(WAIT_S)
        gc.enable()


@pytest.mark.parametrize("count", [15, pytest.param(300, marks=pytest.mark.slow)])
def test_changes_interrupted_from_another_thread_leave_a_sound_index(
    kind: IndexKind, count: int
) -> None:
    rng = random.Random(f"{kind} {count}")
    changes, (index, contents) = Changes(rng), filled(kind)
    made, is_over = 0, threading.Event()
    with _interrupted_now_and_then(rng) as is_open:
        while made < count:
            change = changes.next(contents)
            after = change.after(contents)
            try:
                is_open.set()
                change.make(index)
                while True:  # until the interrupt comes
                    is_over.wait(0.001)
            except Interrupt:
                made += 1
            contents = contents_of(index, contents, after)


class TestMemoryRunsOut:
    """FAISS may have taken nothing, vectors without labels, or everything."""

    @pytest.fixture(params=["before", "after"])
    def moment(self, request: pytest.FixtureRequest) -> str:
        """Say when memory runs out."""
        return request.param

    @pytest.mark.parametrize("name", CHANGES)
    @pytest.mark.parametrize("method", ["add", "replace", "remove"])
    def test_in_a_change_of_vectors(
        self, kind: IndexKind, name: str, method: str, moment: str, monkeypatch: Any
    ) -> None:
        index, before = filled(kind)
        vectors = type(index.view().vectors)
        call = getattr(vectors, method)

        def fail(self: Any, given: Any) -> None:
            monkeypatch.setattr(vectors, method, call)
            if moment == "after":
                call(self, given)
            raise MemoryError

        monkeypatch.setattr(vectors, method, fail)
        change = CHANGES[name]
        with suppress(MemoryError):
            change.make(index)
        contents = contents_of(index, before, change.after(before))
        change.make(index)
        check(index, change.after(contents))

    def test_between_vectors_and_labels(self, monkeypatch: pytest.MonkeyPatch) -> None:
        index, before = filled(IndexKind.FLAT)

        def add(self: FlatVectors, rows: Any) -> None:
            self._flat.add(rows.vectors)
            raise MemoryError

        monkeypatch.setattr(FlatVectors, "add", add)
        with pytest.raises(MemoryError):
            CHANGES["both"].make(index)
        monkeypatch.undo()
        check(index, before)
        CHANGES["both"].make(index)
        check(index, CHANGES["both"].after(before))


@pytest.mark.cross_product(keep=2)
@pytest.mark.parametrize("threads", [1, 2])
def test_memory_that_really_runs_out_leaves_an_index_that_answers(
    kind: IndexKind, threads: int
) -> None:
    code = """
import resource, sys
import faiss
import numpy as np
from rag_accel.engine_api import Document
from rag_accel.engines.retrieval import DocumentIndex, IndexSpec
faiss.omp_set_num_threads(int(sys.argv[2]))
spec = IndexSpec(1024, kind=sys.argv[1], num_clusters=4, nprobe=4, train_size=1000)
index, size, failed = DocumentIndex(spec), 0, 0
vectors = np.random.default_rng(0).normal(size=(4000, 1024)).astype(np.float32)
def add():
    index.add([Document(f"d{size + row}", "") for row in range(4000)], vectors)
def limit(size_bytes):
    resource.setrlimit(resource.RLIMIT_AS, (size_bytes, resource.RLIM_INFINITY))
add(); size += 4000
index.search(vectors[:1], 1)
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
while failed < 3:
    limit(used + 160_000_000)
    try:
        add(); size += 4000
    except MemoryError:
        failed += 1
    limit(resource.RLIM_INFINITY)
    assert size < 400_000
    assert len(index) == size, (len(index), size)
    (row,) = index.search(vectors[:1], size // 4000)
    assert [hit.document.id for hit in row] == [f"d{at}" for at in range(0, size, 4000)], row
add(); size += 4000
assert len(index.search(vectors[:1], size + 9)[0]) == len(index) == size
"""
    command = [sys.executable, "-c", code, kind, str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_label_is_never_used_twice(kind: IndexKind, monkeypatch: pytest.MonkeyPatch) -> None:
    index, before = filled(kind)
    far = ((50, 50, 50), Document("n1", "far"))
    vectors = type(index.view().vectors)
    monkeypatch.setattr(vectors, "remove", _raise)  # nothing can be undone
    monkeypatch.setattr(vectors, "add", _add_and_raise)
    with pytest.raises(Interrupt):
        Change((far,)).make(index)
    monkeypatch.undo()
    other = ((1, -2, 0), Document("other", "near"))
    Change((other,)).make(index)
    after = Change((other,)).after(before)
    check(index, after)
    assert found(index, (50, 50, 50), 1)[0][0].id != "n1"
    labels = index.view().documents.labels().tolist()
    assert labels[-1] == len(before) + 1  # one was given to what was undone


def _raise(*_: object) -> None:
    raise Interrupt


_flat_add, _ivf_add = FlatVectors.add, IvfVectors.add


def _add_and_raise(self: Any, rows: Any) -> None:
    (_flat_add if isinstance(self, FlatVectors) else _ivf_add)(self, rows)
    raise Interrupt


def test_an_index_goes_on_after_a_change_whose_documents_cannot_be_compared() -> None:
    class Odd:
        def __hash__(self) -> int:
            return hash("x")

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("compared")

    index = DocumentIndex(IndexSpec(1))
    index.add([Document("a", "", {"x": 1})], [[1]])
    assert len(index.search([[1]], 9, where={"x": 1})[0]) == 1
    with suppress(RuntimeError):
        index.add([Document("b", "", {Odd(): 1, "x": 1})], [[1]])  # type: ignore[dict-item]
    index.add([Document("c", "", {"x": 1})], [[1]])
    assert [hit.document.id for hit in index.search([[1]], 9)[0]][-1] == "c"
    assert {hit.document.id for hit in index.search([[1]], 9, where={"x": 1})[0]} >= {"a", "c"}
