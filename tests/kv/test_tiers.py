"""States go through memory and folder, are looked for beside the caller, and stay within bounds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from chunk_states import chunk_state, same_state
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_accel.kv import loader as loading
from rag_accel.kv.disk import DiskStore
from rag_accel.kv.entry import ChunkLabel, KeyValues
from rag_accel.kv.loader import Loader
from rag_accel.kv.tiers import TieredStore

KEYS = [bytes([at]) * 32 for at in range(6)]
STATE_BYTES = chunk_state().nbytes
#: bytes of a file, about
FILE_BYTES = STATE_BYTES + 800


def tiered(
    folder: Path, states: int = 2, files: int = 8, eviction: str | None = None
) -> TieredStore:
    disk = DiskStore(folder, limit_bytes=files * FILE_BYTES, model="model", dtype=torch.float32)
    return TieredStore(states * STATE_BYTES, disk, eviction)


def looked(store: TieredStore, key: bytes) -> object:
    """Return what a request for a key finds in the end."""
    found = store.find(key)
    if found is not None:
        return found
    store.prefetch([key])
    while store.is_pending(key):
        store.wait(10.0)
        arrived = dict(store.poll())
        if key in arrived:
            return arrived[key]
    return None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kept"


def test_what_one_store_kept_another_finds(folder: Path) -> None:
    first = tiered(folder)
    first.put(KEYS[0], chunk_state(5), ChunkLabel())
    first.close()
    second = tiered(folder)
    assert same_state(looked(second, KEYS[0]), chunk_state(5))
    assert looked(second, KEYS[1]) is None
    assert second.find(KEYS[0]) is not None
    assert {
        name: second.counts[f"chunk_{name}"] for name in ("hits_disk", "hits_memory", "misses")
    } == {"hits_disk": 1, "hits_memory": 1, "misses": 1}
    second.close()


def test_a_full_folder_admits_at_the_second_request(folder: Path) -> None:
    first = tiered(folder, files=1)
    first.put(KEYS[0], chunk_state())
    first.close()
    second = tiered(folder, files=1)
    assert looked(second, KEYS[1]) is None
    second.put(KEYS[1], chunk_state(1))
    second.close()
    third = tiered(folder, files=1)
    assert looked(third, KEYS[0]) is not None
    assert [looked(third, KEYS[1]) for _ in range(2)] == [None, None]
    third.put(KEYS[1], chunk_state(1))
    third.close()
    assert looked(tiered(folder, files=1), KEYS[1]) is not None


def test_a_closed_store_looks_for_nothing(folder: Path) -> None:
    store = tiered(folder)
    store.put(KEYS[0], chunk_state())
    store.close()
    store.prefetch([KEYS[0]])
    assert not store.is_pending(KEYS[0])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("pfcr"), st.integers(0, 5)), max_size=25))
def test_whatever_is_asked_the_answer_is_the_state_or_none(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, int]]
) -> None:
    folder = tmp_path_factory.mktemp("kept") / "here"
    store = tiered(folder, states=2, files=3)
    try:
        for action, at in actions:
            if action == "p":
                store.put(KEYS[at], chunk_state(at))
            elif action == "f":
                found = looked(store, KEYS[at])
                assert found is None or same_state(found, chunk_state(at))
            elif action == "c":
                store.clear()
            else:
                store.close()
                store = tiered(folder, states=2, files=3)
            assert store.held_bytes <= 2 * STATE_BYTES
            files = sum(one.stat().st_size for one in folder.glob("*.kv") if one.exists())
            assert files <= 3 * FILE_BYTES
    finally:
        store.close()
    assert store.counts["chunk_files_refused"] == 0


class SlowDisk:
    """A disk that answers when it is let."""

    def __init__(self) -> None:
        self.let = threading.Event()
        self.asked: list[bytes] = []
        self.written: list[bytes] = []
        self.failure: Exception | None = None

    def find(self, key: bytes) -> KeyValues | None:
        self.asked.append(key)
        assert self.let.wait(30)
        if self.failure is not None:
            raise self.failure
        return chunk_state() if key in self.written else None

    def put(self, key: bytes, state: KeyValues, label: ChunkLabel) -> bool:
        self.written.append(key)
        return True


@pytest.fixture
def disk() -> SlowDisk:
    return SlowDisk()


@pytest.fixture
def loader(disk: SlowDisk) -> Iterator[Loader]:
    made = Loader(disk)
    yield made
    disk.let.set()
    made.close()


def arrivals(loader: Loader, count: int) -> dict[bytes, KeyValues | None]:
    found: dict[bytes, KeyValues | None] = {}
    while len(found) < count:
        loader.wait(10.0)
        found.update(loader.fetch())
    return found


def test_a_caller_goes_on_while_it_is_looked_for(loader: Loader, disk: SlowDisk) -> None:
    loader.prefetch(KEYS[:2])
    assert loader.fetch() == []
    assert all(loader.is_wanted(key) for key in KEYS[:2])
    disk.let.set()
    assert set(arrivals(loader, 2)) == set(KEYS[:2])
    assert not any(loader.is_wanted(key) for key in KEYS[:2])


def test_a_key_is_looked_for_once_until_it_is_fetched(loader: Loader, disk: SlowDisk) -> None:
    disk.let.set()
    loader.prefetch([KEYS[0], KEYS[0]])
    loader.wait(10.0)
    loader.prefetch([KEYS[0]])
    assert arrivals(loader, 1) == {KEYS[0]: None}
    assert disk.asked == [KEYS[0]]


def test_no_more_is_looked_for_than_may_be(
    loader: Loader, disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "MOST_WANTED", 2)
    loader.prefetch(KEYS)
    assert 2 <= sum(loader.is_wanted(key) for key in KEYS) <= 3  # one may be under way


def test_what_is_beyond_the_bytes_is_not_written(
    loader: Loader, disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "MOST_UNWRITTEN", STATE_BYTES)
    loader.prefetch(KEYS[:1])  # keeps the thread from writing
    for key in KEYS[:3]:
        loader.write(key, chunk_state(), ChunkLabel())
    assert loader.dropped >= 1
    disk.let.set()
    loader.close()
    assert disk.written == KEYS[: 3 - loader.dropped]


def test_a_disk_that_raises_is_a_miss(loader: Loader, disk: SlowDisk) -> None:
    disk.failure = RuntimeError("broken")
    disk.let.set()
    loader.prefetch(KEYS[:1])
    assert arrivals(loader, 1) == {KEYS[0]: None}
    disk.failure = None
    loader.prefetch(KEYS[:1])
    assert arrivals(loader, 1) == {KEYS[0]: None}


def test_closing_writes_what_waits(loader: Loader, disk: SlowDisk) -> None:
    loader.write(KEYS[0], chunk_state(), ChunkLabel())
    loader.close()
    assert disk.written == KEYS[:1]


def test_a_thread_that_ended_for_want_of_work_is_started_again(
    disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "IDLE_S", 0.0)
    disk.let.set()
    made = Loader(disk)
    for key in KEYS:
        made.prefetch([key])
        assert arrivals(made, 1) == {key: None}
    made.close()
