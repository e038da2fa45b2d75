"""What was purged is in no memory, no file and no queue, whoever purged it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from chunk_states import chunk_state

from rag_accel.cli import main
from rag_accel.kv.disk import DiskStore
from rag_accel.kv.entry import ChunkLabel, KeyValues
from rag_accel.kv.folder import ChunkFolder
from rag_accel.kv.locate import locate, parts_of
from rag_accel.kv.store import ChunkStore
from rag_accel.kv.tiers import TieredStore

KEYS = [bytes([at]) * 32 for at in range(4)]
LABELS = [
    ChunkLabel("mine", "One text."),
    ChunkLabel("mine", "Another text."),
    ChunkLabel("theirs", "One text."),
]


def opened(folder: Path) -> TieredStore:
    disk = DiskStore(folder, limit_bytes=1 << 20, model="model", dtype=torch.float32)
    return TieredStore(1 << 20, disk)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TieredStore]:
    """Return a store whose memory and folder keep three texts."""
    first = opened(tmp_path / "kept")
    for key, label in zip(KEYS, LABELS, strict=False):
        first.put(key, chunk_state(), label)
    first.close()
    made = opened(tmp_path / "kept")
    assert looked(made) == [0, 1, 2]
    assert in_memory(made) == [0, 1, 2]
    yield made
    made.close()


def looked(store: TieredStore) -> list[int]:
    """Return which keys are found in the end."""
    store.prefetch(KEYS)
    found: dict[bytes, object] = {}
    while len(found) < len(KEYS):
        store.wait(30)
        found.update(store.poll())
    return [at for at, key in enumerate(KEYS) if found[key] is not None]


def in_memory(store: TieredStore | ChunkStore) -> list[int]:
    return [at for at, key in enumerate(KEYS) if store.find(key) is not None]


def purge(tmp_path: Path, *options: str) -> None:
    assert main(["cache", "purge", str(tmp_path / "kept"), *options]) == 0


def settle(store: TieredStore) -> None:
    """Wait until texts are forgotten: what is read ahead comes after it."""
    read = threading.Event()

    def none() -> Sequence[bytes]:
        read.set()
        return ()

    store.hint(none)
    assert read.wait(30)


@pytest.mark.parametrize(
    ("options", "left"),
    [
        (["--text", "One text."], [1]),
        (["--namespace", "mine"], [2]),
        (["--all"], []),
        (["--text", "No text."], [0, 1, 2]),
    ],
)
def test_a_running_store_forgets_what_a_command_purges(
    store: TieredStore, tmp_path: Path, options: list[str], left: list[int]
) -> None:
    purge(tmp_path, *options)
    assert in_memory(store) == left
    assert looked(store) == left


def test_a_text_is_forgotten_in_its_namespace_alone(store: TieredStore) -> None:
    store.forget(["  One text.\n"], "mine")
    settle(store)
    assert in_memory(store) == [1, 2]
    assert looked(store) == [1, 2]


def test_a_text_is_forgotten_by_other_stores_of_the_folder(
    store: TieredStore, tmp_path: Path
) -> None:
    other = opened(tmp_path / "kept")
    other.forget(["One text."], "theirs")
    other.close()
    assert in_memory(store) == [0, 1]


def test_a_store_that_is_closed_forgets_all_the_same(store: TieredStore, tmp_path: Path) -> None:
    store.close()
    store.forget(["One text."], "mine")
    assert looked(opened(tmp_path / "kept")) == [1, 2]


def test_what_was_encoded_before_a_purge_is_not_kept(store: TieredStore, tmp_path: Path) -> None:
    label = ChunkLabel("mine", "New text.", purges=store.purges)
    purge(tmp_path, "--text", "New text.")
    assert not store.put(KEYS[3], chunk_state(), label)
    assert not store.put(KEYS[3], chunk_state(), label)
    later = ChunkLabel("mine", "New text.", purges=store.purges)
    assert store.put(KEYS[3], chunk_state(), later)


def test_what_waits_to_be_written_is_not_written_after_a_purge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path / "kept")
    let, put = threading.Event(), DiskStore.put

    def gated(self: DiskStore, key: bytes, state: KeyValues, label: ChunkLabel) -> bool:
        assert let.wait(30)
        return put(self, key, state, label)

    monkeypatch.setattr(DiskStore, "put", gated)
    for key in KEYS[:2]:
        store.put(key, chunk_state(), ChunkLabel("mine", "One text.", purges=store.purges))
    purge(tmp_path, "--all")
    assert in_memory(store) == []
    let.set()
    store.close()
    assert ChunkFolder(tmp_path / "kept").files() == []


def test_what_is_read_during_a_purge_counts_as_not_there(
    store: TieredStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.clear()
    read, let, find = threading.Event(), threading.Event(), DiskStore.find

    def gated(self: DiskStore, key: bytes) -> KeyValues | None:
        state = find(self, key)
        read.set()
        assert let.wait(30)
        return state

    monkeypatch.setattr(DiskStore, "find", gated)
    store.prefetch(KEYS[:1])
    assert read.wait(30)
    purge(tmp_path, "--all")
    assert store.find(KEYS[1]) is None
    let.set()
    store.wait(30)
    assert list(store.poll()) == [(KEYS[0], None)]


def test_memory_alone_forgets_texts_of_a_namespace() -> None:
    store = ChunkStore(1 << 20)
    for key, label in zip(KEYS, LABELS, strict=False):
        store.put(key, chunk_state(), label)
    before = store.held_bytes
    old = ChunkLabel("mine", "One text.", purges=store.purges)
    store.forget(["One text. "], "mine")
    assert in_memory(store) == [1, 2]
    assert store.held_bytes == before - chunk_state().nbytes
    assert not store.put(KEYS[0], chunk_state(), old)


def test_every_part_that_is_located_is_a_part() -> None:
    text = "One heading\n\nA line of it. A sentence here.\nAnother line\n\nThe end."
    parts = list(parts_of(text))
    assert parts[0] == text
    for prompt in (text, "> A line of it.\n> Another line\n The end.", "A sentence here. The end."):
        spans = locate(prompt, [("", text)], parts=True)
        assert spans
        assert {prompt[span.start : span.stop].strip() for span in spans} <= set(parts)
