"""States that were hinted at are in memory before they are asked for, within bounds."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from chunk_states import chunk_state, same_state

from rag_accel.kv import loader as loading
from rag_accel.kv.disk import DiskStore
from rag_accel.kv.entry import ChunkLabel, KeyValues
from rag_accel.kv.loader import Loader
from rag_accel.kv.store import ChunkStore
from rag_accel.kv.tiers import TieredStore

KEYS = [bytes([at]) * 32 for at in range(16)]
STATE_BYTES = chunk_state().nbytes


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TieredStore]:
    """Return a store with room for eight states, of them two hinted at; all keys are on disk."""
    made = DiskStore(tmp_path, limit_bytes=1 << 20, model="model", dtype=torch.float32)
    for at, key in enumerate(KEYS):
        made.put(key, chunk_state(at), ChunkLabel())
    tiers = TieredStore(8 * STATE_BYTES, made)
    yield tiers
    tiers.close()


def hint(store: TieredStore | Loader, *keys: bytes) -> None:
    """Give a hint and wait until it has been followed."""
    store.hint(lambda: keys)
    follow(store)


def follow(store: TieredStore | Loader) -> None:
    """Wait until all hints have been followed: the next is read only then."""
    read = threading.Event()

    def none() -> Sequence[bytes]:
        read.set()
        return ()

    store.hint(none)
    assert read.wait(30)


def in_memory(store: TieredStore) -> list[int]:
    return [at for at, key in enumerate(KEYS) if store.find(key) is not None]


def test_what_was_hinted_at_need_not_be_looked_for(store: TieredStore) -> None:
    hint(store, KEYS[3], b"unknown")
    assert same_state(store.find(KEYS[3]), chunk_state(3))
    assert store.poll() == []
    assert store.counts["chunk_prefetch_loaded"] == 1
    assert store.counts["chunk_hits_memory"] == 1


def test_the_latest_that_were_hinted_at_stay_within_their_share(store: TieredStore) -> None:
    for key in KEYS[:3]:
        store.put(key, chunk_state())
    hint(store, *KEYS[5:10])
    assert in_memory(store) == [0, 1, 2, 8, 9]


def test_what_was_asked_for_meanwhile_is_not_of_the_share(store: TieredStore) -> None:
    hint(store, *KEYS[:2])
    assert in_memory(store) == [0, 1]
    hint(store, *KEYS[2:4])
    assert in_memory(store) == [0, 1, 2, 3]


def test_a_hint_pushes_out_nothing_that_is_held(store: TieredStore) -> None:
    for key in KEYS[:8]:
        store.put(key, chunk_state())
    store.pin(KEYS[:8])
    hint(store, *KEYS[8:12])
    assert in_memory(store) == list(range(8))
    assert store.counts["chunk_prefetch_dropped"] == 1  # with the first, the others are given up
    assert store.counts["chunk_prefetch_loaded"] == 0


def test_a_hint_takes_the_place_of_what_was_used_longest_ago(store: TieredStore) -> None:
    for key in KEYS[:8]:
        store.put(key, chunk_state())
    store.pin(KEYS[:8])
    store.pin(KEYS[1:2])
    store.unpin(KEYS[:2])
    hint(store, KEYS[8])
    assert in_memory(store) == list(range(1, 9))
    hint(store, KEYS[9])  # of what is left, the next is held once more
    assert 9 not in in_memory(store)


def test_what_a_prompt_holds_is_no_longer_of_the_share(store: TieredStore) -> None:
    hint(store, *KEYS[:2])
    store.pin(KEYS[:2])
    hint(store, *KEYS[2:4])
    assert in_memory(store)[:2] == [0, 1]


def test_a_state_beyond_the_share_is_not_read_ahead(tmp_path: Path) -> None:
    disk = DiskStore(tmp_path, limit_bytes=1 << 20, model="model", dtype=torch.float32)
    disk.put(KEYS[0], chunk_state(), ChunkLabel())
    store = TieredStore(2 * STATE_BYTES, disk)
    hint(store, KEYS[0])
    assert store.find(KEYS[0]) is None
    store.close()


def test_a_closed_store_takes_no_hint(store: TieredStore) -> None:
    store.close()
    store.hint(lambda: pytest.fail("it was read"))
    assert store.held_bytes == 0


def test_memory_alone_reads_nothing_ahead() -> None:
    store = ChunkStore(STATE_BYTES)
    store.pin(KEYS)
    store.hint(lambda: pytest.fail("it was read"))
    store.unpin(KEYS)
    assert store.poll() == ()


class GatedDisk:
    """A disk that holds every state and answers when it is let."""

    def __init__(self) -> None:
        self.let = threading.Event()
        self.began = threading.Event()
        self.calls: list[tuple[str, bytes]] = []

    def find(self, key: bytes) -> KeyValues | None:
        self.calls.append(("find", key))
        self.began.set()
        assert self.let.wait(30)
        return chunk_state()

    def put(self, key: bytes, state: KeyValues, label: ChunkLabel) -> bool:
        self.calls.append(("put", key))
        return True


@pytest.fixture
def disk() -> GatedDisk:
    return GatedDisk()


@pytest.fixture
def kept() -> list[bytes]:
    return []


@pytest.fixture
def loader(disk: GatedDisk, kept: list[bytes]) -> Iterator[Loader]:
    def keep(key: bytes, state: KeyValues) -> bool:
        kept.append(key)
        return True

    made = Loader(disk, keep)
    yield made
    disk.let.set()
    made.close()


def fetched(loader: Loader, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        loader.wait(30)
        found += [key for key, _ in loader.fetch()]
    return found


def test_what_is_needed_now_goes_first(loader: Loader, disk: GatedDisk) -> None:
    loader.hint(lambda: KEYS[:3])
    assert disk.began.wait(30)
    loader.prefetch([KEYS[5]])
    disk.let.set()
    assert fetched(loader, 1) == [KEYS[5]]
    follow(loader)
    assert [key for _, key in disk.calls] == [KEYS[0], KEYS[5], *KEYS[1:3]]


def test_what_is_asked_for_while_it_is_read_ahead_is_reported_once(
    loader: Loader, disk: GatedDisk
) -> None:
    loader.hint(lambda: KEYS[:2])
    assert disk.began.wait(30)
    assert not loader.is_wanted(KEYS[0])
    loader.prefetch(KEYS[:2])
    assert all(loader.is_wanted(key) for key in KEYS[:2])
    disk.let.set()
    assert fetched(loader, 2) == KEYS[:2]
    follow(loader)
    assert disk.calls == [("find", key) for key in KEYS[:2]]


def test_writes_take_turns_with_what_is_read_ahead(loader: Loader, disk: GatedDisk) -> None:
    loader.hint(lambda: KEYS[:4])
    assert disk.began.wait(30)
    loader.write(KEYS[9], chunk_state(), ChunkLabel())
    disk.let.set()
    follow(loader)
    assert disk.calls[1] == ("put", KEYS[9])


def test_ten_thousand_hints_at_once_are_bounded(loader: Loader, disk: GatedDisk) -> None:
    loader.hint(lambda: KEYS[:1])
    assert disk.began.wait(30)
    read: list[int] = []

    def hinted(at: int) -> Sequence[bytes]:
        read.append(at)
        return ()

    for at in range(10_000):
        loader.hint(lambda at=at: hinted(at))
    disk.let.set()
    # The one that tells that all have been followed takes the place of the oldest that waits.
    follow(loader)
    assert set(read) <= set(range(10_000 - loading.MOST_HINTS, 10_000))
    assert loader.hints.dropped + len(read) == 10_000


def test_a_hint_of_many_keys_is_cut(
    loader: Loader, disk: GatedDisk, kept: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "MOST_AHEAD", 2)
    disk.let.set()
    hint(loader, *KEYS)
    assert kept == KEYS[:2]


def test_a_hint_that_raises_is_counted_and_the_next_is_read(
    loader: Loader, disk: GatedDisk, kept: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> Sequence[bytes]:
        raise RuntimeError("no tokens")

    disk.let.set()
    loader.hint(broken)
    hint(loader, KEYS[0])
    assert (loader.hints.failed, kept) == (1, KEYS[:1])
    assert "no tokens" in caplog.text
