"""A store keeps no state without the one behind which it was encoded, whatever is removed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rag_accel.errors import ConfigError
from rag_accel.kv.entry import ChunkLabel, KeyValues
from rag_accel.kv.eviction import LookaheadPolicy
from rag_accel.kv.store import ChunkStore

NAMES = ("lru", "lookahead")


def state(tokens: int = 1) -> KeyValues:
    """Return state of 8 bytes a token."""
    return KeyValues(torch.zeros(1, 1, tokens, 1), torch.zeros(1, 1, tokens, 1), 0)


def chain(store: ChunkStore) -> None:
    """Keep c behind b behind a, each with a text of its name, of one tenant."""
    parent = None
    for name in "abc":
        assert store.keep(name.encode(), state(), ChunkLabel(text=name), parent)
        parent = name.encode()


def test_a_state_does_not_push_its_parent_out() -> None:
    store = ChunkStore(8 * 3)
    assert store.keep(b"a", state(2))
    assert not store.keep(b"b", state(2), parent=b"a")
    assert store.kept == [b"a"]
    assert store.held_bytes == 16


def test_forgetting_a_text_forgets_what_was_encoded_behind_it() -> None:
    store = ChunkStore(80)
    chain(store)
    store.keep(b"x", state(), ChunkLabel(namespace="other", text="a"))
    store.forget(["a"], "")
    assert store.kept == [b"x"]
    store.forget(["a"], "other")
    assert store.held_bytes == 0


def test_the_given_policy_is_used_though_it_is_empty() -> None:
    store = ChunkStore(8 * 2, LookaheadPolicy(half_lives=(1000.0,)))
    for key in (b"a", b"b"):
        store.keep(key, state())
    for key in (b"a", b"a", b"b"):
        store.find(key)
    store.keep(b"c", state())
    assert store.kept == [b"a", b"c"]


def test_a_store_tells_its_policy_of_requests() -> None:
    store = ChunkStore(8 * 2, "lookahead")
    for key in (b"a", b"b"):
        store.keep(key, state())
    store.find(b"b")
    store.began([(), (b"a",)])
    store.keep(b"c", state())
    assert store.kept == [b"a", b"c"]


@pytest.mark.parametrize("admits_all", [True, False])
def test_a_full_store_admits_new_states_as_it_is_told(admits_all: bool) -> None:
    store = ChunkStore(8, admits_all=admits_all)
    assert store.put(b"a", state())
    assert store.put(b"b", state()) == admits_all
    assert store.kept == ([b"b"] if admits_all else [b"a"])


@pytest.mark.parametrize("name", ["fifo", "lacr", "lfu"])
def test_an_unknown_policy_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match="unknown eviction policy") as caught:
        ChunkStore(80, name)
    assert all(part in str(caught.value) for part in (repr(name), "'lookahead'", "bench/baselines"))


@pytest.mark.parametrize("name", NAMES)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(("put", "keep", "find", "remove", "forget", "began", "clear")),
            st.integers(0, 9),
            st.integers(-1, 9),
        ),
        max_size=60,
    )
)
def test_no_state_is_ever_kept_without_its_parent(
    name: str, steps: list[tuple[str, int, int]]
) -> None:
    store = ChunkStore(8 * 12, name)
    parents: dict[bytes, bytes | None] = {}
    for step, number, other in steps:
        key, parent = bytes([number]), bytes([other]) if other >= 0 else None
        if step in ("put", "keep") and key not in store:
            method = store.put if step == "put" else store.keep
            if method(key, state(1 + number % 4), ChunkLabel(text=str(number)), parent):
                parents[key] = parent
        elif step == "find":
            store.find(key)
        elif step == "remove":
            store.remove(key)
        elif step == "forget":
            store.forget([str(number)], "")
        elif step == "began":
            store.began([(key, bytes([other % 10]))])
        elif step == "clear" and not number:
            store.clear()
        kept = store.kept
        assert all(parents[key] is None or parents[key] in kept for key in kept)
        assert store.held_bytes == sum(store.peek(key).nbytes for key in kept) <= 8 * 12  # type: ignore[union-attr]
    store.clear()
    assert store.held_bytes == 0
    assert not store._parents
    assert not store._children
