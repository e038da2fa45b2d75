"""Policies say what goes first, and a second request says what is worth it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_accel.errors import ConfigError
from rag_accel.kv.eviction import (
    EvictionPolicy,
    LookaheadPolicy,
    LRUPolicy,
    SecondHitAdmission,
    eviction_policy,
)
from rag_accel.kv.eviction.half_life import DecayedCounts
from rag_accel.kv.eviction.names import POLICIES
from rag_accel.kv.eviction.window import RequestWindow
from rag_accel.testing import EvictionPolicyContract


class TestLeastRecentlyUsed(EvictionPolicyContract):
    """The contract, on the policy that is used by default."""

    def policy(self) -> LRUPolicy:
        return LRUPolicy()


class TestLookahead(EvictionPolicyContract):
    """The contract, on the policy that learns its half-life."""

    def policy(self) -> LookaheadPolicy:
        return LookaheadPolicy()


class _Forgetful(LRUPolicy):
    """A policy that names states which are gone."""

    def removed(self, key: bytes) -> None:
        pass


class _Flat(LRUPolicy):
    """A policy that takes no notice of trees."""

    def added(self, key: bytes, nbytes: int, parent: bytes | None = None) -> None:
        super().added(key, nbytes)


class TestTheContract:
    def test_it_sees_a_policy_that_names_what_is_gone(self) -> None:
        contract = EvictionPolicyContract()
        contract.policy = _Forgetful  # type: ignore[method-assign]
        with pytest.raises(AssertionError, match="gone"):
            contract.test_a_removed_state_is_no_victim()

    def test_it_sees_a_policy_that_evicts_parents(self) -> None:
        contract = EvictionPolicyContract()
        contract.policy = _Flat  # type: ignore[method-assign]
        with pytest.raises(AssertionError, match="before"):
            contract.test_a_parent_goes_after_its_children()
        with pytest.raises(AssertionError, match="before its child"):
            contract.test_no_child_is_kept_without_its_parent()


def _key(number: int) -> bytes:
    return bytes([number])


def _keys(*numbers: int) -> tuple[bytes, ...]:
    return tuple(_key(number) for number in numbers)


def _evicted(policy: EvictionPolicy, count: int) -> list[bytes]:
    gone: list[bytes] = []
    for _ in range(count):
        gone.append(policy.victim())
        policy.removed(gone[-1])
    return gone


# Recency and counts ------------------------------------------------------------------------------


def test_what_was_used_longest_ago_goes_first() -> None:
    policy = LRUPolicy()
    for key in (b"a", b"b", b"c"):
        policy.added(key, 1)
    policy.used(b"a")
    assert _evicted(policy, 3) == [b"b", b"c", b"a"]


def test_an_old_parent_goes_as_soon_as_its_last_child_has() -> None:
    policy = LRUPolicy()
    policy.added(b"a", 1)
    policy.added(b"b", 1, b"a")
    policy.added(b"c", 1)
    assert _evicted(policy, 3) == [b"b", b"a", b"c"]


# The window --------------------------------------------------------------------------------------


def test_a_window_that_shifts_lowers_only_what_left_it() -> None:
    window = RequestWindow(3)
    assert window.replace([_keys(1, 2), _keys(2), _keys(3), _keys(4)]) == set()
    assert list(window.uses(_key(2))) == [0, 1]
    assert list(window.uses(_key(4))) == []
    assert window.replace([_keys(2), _keys(3), _keys(4)]) == set(_keys(1, 2))
    assert window.first == 1
    assert list(window.uses(_key(2))) == [1]
    assert list(window.uses(_key(4))) == [3]


def _told(queue: Sequence[Sequence[int]]) -> list[tuple[bytes, ...]]:
    return [_keys(*keys) for keys in queue]


_QUEUES = st.lists(st.lists(st.integers(0, 5), max_size=4), max_size=6)


@given(st.lists(_QUEUES, max_size=6), st.integers(1, 4))
def test_a_window_is_what_was_told_last_whatever_came_before(
    queues: list[list[list[int]]], size: int
) -> None:
    window = RequestWindow(size)
    for queue in queues:
        window.replace(_told(queue))
        for number in range(6):
            there = [at for at, keys in enumerate(queue[:size]) if number in keys]
            assert [use - window.first for use in window.uses(_key(number))] == there


# Look-ahead --------------------------------------------------------------------------------------


def test_the_latest_next_use_goes_first_behind_what_nobody_awaits() -> None:
    policy = LookaheadPolicy()
    for number in range(4):
        policy.added(_key(number), 1)
    for _ in range(9):
        policy.used(_key(3))
    policy.began([_keys(1), _keys(2, 1), _keys(0)])
    assert _evicted(policy, 4) == list(_keys(3, 0, 2, 1))


def test_a_short_half_life_forgets_yesterdays_favourites() -> None:
    old, new = b"a", b"b"
    for half_life, gone in ((2.0, old), (1000.0, new)):
        policy = LookaheadPolicy(half_lives=(half_life,))
        policy.began([])
        policy.added(old, 1)
        for _ in range(4):
            policy.began([])
            policy.used(old)
        for _ in range(8):
            policy.began([])
        policy.added(new, 1)
        assert policy.victim() == gone


def test_an_evicted_state_comes_back_with_its_counts() -> None:
    for remembered, gone in ((1, b"b"), (0, b"a")):
        policy = LookaheadPolicy(half_lives=(1000.0,), remembered=remembered)
        policy.began([])
        policy.added(b"a", 1)
        for _ in range(5):
            policy.used(b"a")
        policy.removed(b"a")
        policy.added(b"a", 1)
        policy.added(b"b", 1)
        policy.used(b"b")
        assert policy.victim() == gone


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=12),
    st.lists(st.integers(0, 30), min_size=1, max_size=12),
    st.sampled_from((1.0, 4.0, 32.0)),
)
def test_ranks_are_in_the_order_of_the_decayed_counts(
    first: list[int], second: list[int], half_life: float
) -> None:
    counts = DecayedCounts((half_life,), 0)
    exact: dict[bytes, float] = {}
    for key, uses in ((b"a", sorted(first)), (b"b", sorted(second))):
        for now in uses:
            counts.use(key, now)
        exact[key] = sum(2.0 ** ((use - 31) / half_life) for use in uses)
    if abs(exact[b"a"] - exact[b"b"]) > 1e-9 * exact[b"a"]:
        is_higher = counts.rank(b"a", 0) > counts.rank(b"b", 0)
        assert is_higher == (exact[b"a"] > exact[b"b"])


def _hits(policy: EvictionPolicy, stream: Sequence[int], room: int, tells: bool = True) -> int:
    """Return how often a key was kept; a cache of ``room`` keys, one request a key."""
    kept: set[bytes] = set()
    hits = 0
    for number in stream:
        key = number.to_bytes(2, "big")
        if tells:
            policy.began([])
        if key in kept:
            hits += 1
            policy.used(key)
            continue
        if len(kept) == room:
            victim = policy.victim()
            policy.removed(victim)
            kept.remove(victim)
        policy.added(key, 1)
        kept.add(key)
    return hits


def _drifting(draw: random.Random) -> list[int]:
    """Return keys out of a small set that moves on: recency is worth more than counts."""
    return [at // 40 * 10 + draw.randrange(60) for at in range(6000)]


def _popular(draw: random.Random) -> list[int]:
    """Return keys by Zipf's law: counts are worth more than recency."""
    ranks = range(1, 601)
    return draw.choices(ranks, [1 / rank for rank in ranks], k=6000)


@pytest.mark.parametrize("tells", [True, False])
def test_the_half_life_is_learnt_from_the_stream(tells: bool) -> None:
    for stream_of, best, worst in ((_drifting, 40.0, 4000.0), (_popular, 4000.0, 40.0)):
        stream = stream_of(random.Random(3))
        ours = LookaheadPolicy(half_lives=(40.0, 4000.0), one_in=2)
        hits = _hits(ours, stream, 80, tells)
        assert ours.half_life == best
        assert hits > 1.1 * _hits(LookaheadPolicy(half_lives=(worst,)), stream, 80, tells)


def test_a_learnt_half_life_changes_with_the_stream() -> None:
    ours = LookaheadPolicy(half_lives=(40.0, 4000.0), one_in=2)
    _hits(ours, _popular(random.Random(0)), 80)
    assert ours.half_life == 4000.0
    while len(ours):
        ours.removed(ours.victim())
    _hits(ours, [5000 + key for key in _drifting(random.Random(0))], 80)
    assert ours.half_life == 40.0


# All of them -------------------------------------------------------------------------------------

_STEPS = st.lists(
    st.tuples(st.integers(0, 15), st.integers(-1, 15), _QUEUES | st.none()), max_size=80
)


@pytest.mark.parametrize("name", POLICIES)
@given(steps=_STEPS)
def test_the_victim_is_the_leaf_of_lowest_priority(
    name: str, steps: list[tuple[int, int, list[list[int]] | None]]
) -> None:
    """Compare the heap with a scan of all leaves."""
    policy = eviction_policy(name)
    kept: dict[bytes, bytes | None] = {}
    for number, behind, queue in steps:
        if queue is not None:
            policy.began(_told(queue))
        key, parent = _key(number), _key(behind) if behind >= 0 else None
        if key in kept:
            policy.used(key)
        else:
            kept[key] = parent if parent in kept else None
            policy.added(key, 1, kept[key])
        if number % 3 == 0:
            policy.removed(victim := policy.victim())
            del kept[victim]
        if kept:
            priority = policy._priority  # type: ignore[attr-defined]
            lowest = min(priority(key) for key in kept if key not in kept.values())
            assert priority(policy.victim()) == lowest


@pytest.mark.parametrize("name", POLICIES)
def test_memory_is_bounded_however_long_it_runs(name: str) -> None:
    policy = LookaheadPolicy(remembered=50) if name == "lookahead" else eviction_policy(name)
    draw = random.Random(0)
    waiting = [[draw.randbytes(2) for _ in range(3)] for _ in range(40)]
    for turn in range(5000):
        policy.began(waiting[turn % 20 :][:20])
        policy.added(turn.to_bytes(4, "big"), 1)
        policy.used(turn.to_bytes(4, "big"))
        if turn >= 100:
            policy.removed(policy.victim())
    assert len(policy._heap) <= 2 * 101 + 64 + 1  # type: ignore[attr-defined]
    if isinstance(policy, LookaheadPolicy):
        assert len(policy._counts) <= 101 + 50
        assert max(len(shadow) for shadow in policy._duel._shadows) <= 101


class _Counted(LRUPolicy):
    """A policy that counts how often a priority is computed."""

    looks = 0

    def _priority(self, key: bytes) -> tuple[float, ...]:
        self.looks += 1
        return super()._priority(key)


def test_a_victim_among_many_is_found_without_a_scan() -> None:
    policy = _Counted()
    for number in range(20_000):
        policy.added(number.to_bytes(4, "big"), 1)
    before = policy.looks
    for number in range(1000):
        policy.used((10_000 + number).to_bytes(4, "big"))
        policy.removed(policy.victim())
        policy.added((20_000 + number).to_bytes(4, "big"), 1)
    assert policy.looks - before < 10 * 1000


# Names -------------------------------------------------------------------------------------------


def test_a_name_gives_a_fresh_policy() -> None:
    kinds = {"lru": LRUPolicy, "lookahead": LookaheadPolicy}
    assert {name: type(eviction_policy(name)) for name in POLICIES} == kinds
    assert eviction_policy("lru") is not eviction_policy("lru")


@pytest.mark.parametrize("bad", ["LRU", "", "fifo", None, 3, object(), LRUPolicy])
def test_another_name_or_object_is_a_config_error(bad: object) -> None:
    with pytest.raises(ConfigError, match="'lru', 'lookahead'"):
        eviction_policy(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"window": -1},
        {"half_lives": ()},
        {"half_lives": (4.0, 0.0)},
        {"half_lives": (float("inf"),)},
        {"one_in": 0},
        {"remembered": -1},
    ],
)
def test_bad_numbers_are_config_errors(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="valid: "):
        LookaheadPolicy(**options)


# Admission ---------------------------------------------------------------------------------------


def test_a_key_is_known_from_its_second_request_on() -> None:
    sight = SecondHitAdmission()
    sight.count(b"a")
    assert not sight.is_known(b"a")
    sight.count(b"a")
    assert sight.is_known(b"a")
    assert not sight.is_known(b"b")


def test_only_the_latest_keys_are_remembered() -> None:
    sight = SecondHitAdmission(most=2)
    for key in (b"a", b"a", b"b", b"c"):
        sight.count(key)
    assert not sight.is_known(b"a")
