"""The state that is preferred for a text is read in place of its own, while it is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from chunk_states import chunk_state, same_state

from rag_accel.cli import main
from rag_accel.kv.disk import DiskStore
from rag_accel.kv.entry import ChunkLabel, KeyValues
from rag_accel.kv.tiers import TieredStore

ALONE, BEHIND, OTHER = (bytes([at]) * 32 for at in range(3))


def made(path: Path, **options: Any) -> DiskStore:
    settings = {"limit_bytes": 1 << 20, "model": "m" * 64, "dtype": torch.float32, **options}
    return DiskStore(path / "kept", **settings)


@pytest.fixture
def disk(tmp_path: Path) -> DiskStore:
    store = made(tmp_path)
    store.put(ALONE, chunk_state(0), ChunkLabel("mine", "One text."))
    seen = store.folder.text_digests(["Another text."], "mine")
    store.put(BEHIND, chunk_state(1), ChunkLabel("mine", "One text.", seen))
    store.link(ALONE, BEHIND)
    return store


def found(disk: DiskStore) -> KeyValues:
    state = disk.find(ALONE)
    assert state is not None
    return state


def references(disk: DiskStore) -> list[Path]:
    return sorted(disk.folder.path.glob("*.ref"))


def test_the_preferred_state_is_read(disk: DiskStore) -> None:
    assert same_state(found(disk), chunk_state(1))
    assert found(disk).seen == disk.folder.text_digests(["Another text."], "mine")


def test_the_last_one_preferred_counts(disk: DiskStore) -> None:
    disk.put(OTHER, chunk_state(2), ChunkLabel())
    disk.link(ALONE, OTHER)
    assert same_state(found(disk), chunk_state(2))


def test_once_it_is_gone_the_texts_own_is_read(disk: DiskStore) -> None:
    disk.folder.remove(disk.folder.path_of(disk.folder.name(BEHIND)))
    assert same_state(found(disk), chunk_state(0))
    assert not found(disk).seen


def test_a_damaged_state_is_not_read(disk: DiskStore) -> None:
    path = disk.folder.path_of(disk.folder.name(BEHIND))
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert same_state(found(disk), chunk_state(0))


@pytest.mark.parametrize("content", [b"", b"?" * 128, b"a" * 128, b"a" * 4000])
def test_a_reference_that_is_not_ours_is_not_followed(disk: DiskStore, content: bytes) -> None:
    (reference,) = references(disk)
    reference.write_bytes(content)
    assert same_state(found(disk), chunk_state(0))


def test_a_reference_under_another_name_is_not_followed(disk: DiskStore) -> None:
    disk.put(OTHER, chunk_state(2), ChunkLabel())
    (reference,) = references(disk)
    reference.rename(disk.folder.path / f"{disk.folder.name(OTHER)}.ref")
    assert same_state(disk.find(OTHER), chunk_state(2))


def test_a_link_is_not_followed(disk: DiskStore, tmp_path: Path) -> None:
    (reference,) = references(disk)
    reference.rename(tmp_path / "moved")
    reference.symlink_to(tmp_path / "moved")
    assert same_state(found(disk), chunk_state(0))


def test_references_to_what_is_gone_are_removed_by_the_next_program(
    disk: DiskStore, tmp_path: Path
) -> None:
    disk.folder.remove(disk.folder.path_of(disk.folder.name(BEHIND)))
    made(tmp_path)
    assert references(disk) == []


def test_other_references_stay(disk: DiskStore, tmp_path: Path) -> None:
    made(tmp_path)
    assert len(references(disk)) == 1


@pytest.mark.parametrize(
    ("text", "left"), [("One text.", []), ("Another text.", [ALONE]), ("No text.", [ALONE, BEHIND])]
)
def test_a_text_is_purged_from_all_that_has_seen_it(
    disk: DiskStore, text: str, left: list[bytes]
) -> None:
    main(["cache", "purge", str(disk.folder.path), "--text", text])
    assert [key for key in (ALONE, BEHIND) if disk.find(key) is not None] == left
    assert len(references(disk)) == (BEHIND in left)


def test_memory_gives_what_was_read(disk: DiskStore) -> None:
    store = TieredStore(1 << 20, disk)
    try:
        store.prefetch([ALONE])
        store.wait(10.0)
        ((_, state),) = store.poll()
        assert same_state(state, chunk_state(1))
        assert store.find(ALONE) is state
    finally:
        store.close()


def test_what_is_kept_tells_its_bytes(disk: DiskStore) -> None:
    path = disk.folder.path_of(disk.folder.name(BEHIND))
    assert disk.kept_bytes(BEHIND) == path.stat().st_size
    assert disk.kept_bytes(OTHER) == 0


def test_what_could_not_be_read_is_not_kept(disk: DiskStore, tmp_path: Path) -> None:
    assert made(tmp_path, model="n" * 64).kept_bytes(ALONE) == 0
    assert made(tmp_path, dtype=torch.bfloat16).kept_bytes(ALONE) == 0
    path = disk.folder.path_of(disk.folder.name(ALONE))
    path.write_bytes(path.read_bytes()[:-1])
    assert disk.kept_bytes(ALONE) == 0
