"""Texts are kept under all that their state depends on, within the bytes allowed."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

from rag_accel.kv.entry import KeyValues
from rag_accel.kv.keys import ChunkSource
from rag_accel.kv.rotation import rotated
from rag_accel.kv.store import ChunkStore

SOURCE = ChunkSource("model", "tenant", (1, 2))


def state(tokens: int = 4) -> KeyValues:
    """Return state of 8 bytes a token."""
    return KeyValues(torch.zeros(1, 1, tokens, 1), torch.zeros(1, 1, tokens, 1), 0)


def test_a_key_is_that_of_its_source_and_tokens() -> None:
    assert SOURCE.key((5, 6)) == ChunkSource("model", "tenant", (1, 2)).key([5, 6])
    assert len(SOURCE.key((5, 6))) == 32


def test_keys_are_those_of_folders_that_there_are() -> None:
    assert SOURCE.key((5, 6)).hex().startswith("3a2de623e854b17485c4c70db4847fc9")
    behind = SOURCE.behind([(1,), (-3, 2**40)])
    assert behind.key(range(9)).hex().startswith("900ccc3a02c5f380a40fa095a6250288")


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_a_copy_of_a_source_that_was_used_has_its_keys(copied: Any) -> None:
    key = SOURCE.key((5, 6))
    assert copied(SOURCE) == SOURCE
    assert copied(SOURCE).key((5, 6)) == key


@pytest.mark.parametrize(
    "other",
    [
        ChunkSource("model2", "tenant", (1, 2)),
        ChunkSource("model", "tenant2", (1, 2)),
        ChunkSource("modelt", "enant", (1, 2)),
        ChunkSource("model", "tenant", (1,)),
        ChunkSource("model", "tenant", (1, 2, 5)),
        ChunkSource("model", "tenant", (1, 2), "other"),
    ],
)
def test_whatever_state_depends_on_changes_the_key(other: ChunkSource) -> None:
    assert other.key((5, 6)) != SOURCE.key((5, 6))
    assert other.key((6,)) != SOURCE.key((5, 6))


def test_the_least_lately_used_goes_first() -> None:
    store = ChunkStore(limit_bytes=64)
    assert all(store.put(key, state()) for key in (b"a", b"b"))
    assert store.find(b"a") is not None
    store.keep(b"c", state())
    assert [store.find(key) is not None for key in (b"a", b"b", b"c")] == [True, False, True]
    assert store.held_bytes == 64


def test_a_full_store_admits_at_the_second_request() -> None:
    store = ChunkStore(limit_bytes=64)
    assert all(store.put(key, state()) for key in (b"a", b"b"))
    found = [(store.find(b"c"), store.put(b"c", state())) for _ in range(2)]
    assert found == [(None, False), (None, True)]
    assert (b"a" in store, b"b" in store) == (False, True)


def test_room_left_by_what_was_given_up_is_for_what_was_asked_for_before() -> None:
    store = ChunkStore(limit_bytes=64)
    assert store.put(b"large", state(8))
    for _ in range(2):
        store.find(b"small")
    assert store.put(b"small", state())
    assert store.has_room(state().nbytes)
    assert not store.put(b"new", state())
    store.clear()
    assert store.put(b"new", state())


def test_what_is_larger_than_the_store_is_not_kept() -> None:
    store = ChunkStore(limit_bytes=64)
    store.put(b"a", state())
    assert not store.put(b"b", state(9))
    assert store.find(b"a") is not None


def test_what_is_kept_stays_when_it_is_put_again() -> None:
    store = ChunkStore(limit_bytes=64)
    first = state()
    store.put(b"a", first)
    store.put(b"a", state())
    assert store.find(b"a") is first
    assert store.held_bytes == 32


def test_nothing_is_held_once_it_is_cleared() -> None:
    store = ChunkStore(limit_bytes=64)
    store.put(b"a", state())
    store.clear()
    assert (len(store), store.held_bytes) == (0, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_moved_there_and_back_keys_are_the_same(dtype: torch.dtype) -> None:
    frequencies = 10_000 ** (-torch.arange(0, 8, 2) / 8)
    keys = torch.randn(2, 1, 5, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    there = rotated(keys, 700, frequencies)
    assert not torch.equal(there, keys)
    tolerance = 1e-5 if dtype is torch.float32 else 0.05
    torch.testing.assert_close(rotated(there, -700, frequencies), keys, atol=tolerance, rtol=0)
    assert rotated(keys, 0, frequencies) is keys
