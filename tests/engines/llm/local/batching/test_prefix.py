"""Lanes found by the tokens they hold, and which of them are given up when."""

from __future__ import annotations

import random

import pytest
from fake_runner import FakePool

from rag_accel.engines.llm.local.batching.prefix import PrefixCache, RadixTree
from rag_accel.engines.llm.local.batching.schedule import common_length
from rag_accel.engines.llm.local.batching.sequence import Lane


def ids(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


@pytest.mark.parametrize("seed", range(5))
def test_the_tree_agrees_with_a_search_through_all_lanes(seed: int) -> None:
    rng = random.Random(seed)
    tree, held = RadixTree(), []
    for at in range(300):
        made = tuple(rng.choices(range(2), k=rng.randint(1, 12)))
        if held and rng.random() < 0.4:
            tree.remove(held.pop(rng.randrange(len(held))))
        else:
            held.append(Lane(at, "", made))
            tree.put(held[-1])
        best = max((common_length(lane.ids, made) for lane in held), default=0)
        found, common = tree.longest(made)
        assert common == best
        assert found is None or (found in held and common_length(found.ids, made) == best)
        covered = {lane for lane in held if lane.ids == made[: len(lane.ids)]}
        assert set(tree.before(made)) == covered


def fill(cache: PrefixCache, pool: FakePool, text: str, namespace: str = "") -> tuple[Lane, int]:
    """Compute a sequence of these tokens and return its lane and what was taken over."""
    opened = cache.open(ids(text), len(text), namespace, len(text) - 1)
    assert opened is not None
    lane, common = opened
    pool.lanes[lane.number].update(enumerate(ids(text)))
    cache.grow(lane, ids(text))
    return lane, common


@pytest.fixture
def pool() -> FakePool:
    return FakePool(30)


@pytest.fixture
def cache(pool: FakePool) -> PrefixCache:
    return PrefixCache(pool, 3)


def test_what_an_ended_sequence_computed_is_copied(cache: PrefixCache, pool: FakePool) -> None:
    cache.keep(fill(cache, pool, "abcdef")[0])
    lane, common = cache.open(ids("abcxyz"), 6, "", 5) or pytest.fail("no lane")
    assert common == 3
    assert pool.lanes[lane.number] == dict(enumerate(ids("abc")))


def test_what_a_running_sequence_has_computed_is_copied(cache: PrefixCache, pool: FakePool) -> None:
    fill(cache, pool, "abcd")
    assert fill(cache, pool, "abxy")[1] == 2


def test_namespaces_share_nothing(cache: PrefixCache, pool: FakePool) -> None:
    cache.keep(fill(cache, pool, "abcd", "one")[0])
    assert fill(cache, pool, "abcd", "two")[1] == 0
    assert pool.copied == 0


def test_of_a_dropped_lane_nothing_is_taken_over(cache: PrefixCache, pool: FakePool) -> None:
    cache.drop(fill(cache, pool, "abcd")[0])
    assert fill(cache, pool, "abcd")[1] == 0
    assert pool.held_bytes == 4


def test_idle_lanes_beyond_the_bound_are_given_back(cache: PrefixCache, pool: FakePool) -> None:
    for text in ("aaa", "bbb", "ccc", "ddd"):
        cache.keep(fill(cache, pool, text)[0])
    assert pool.held_bytes == 9
    assert fill(cache, pool, "aaa")[1] == 0


def test_a_lane_gives_way_to_one_that_covers_it(cache: PrefixCache, pool: FakePool) -> None:
    cache.keep(fill(cache, pool, "abc")[0])
    cache.keep(fill(cache, pool, "abcdef")[0])
    assert pool.held_bytes == 6


def test_room_is_made_by_what_was_least_lately_needed(cache: PrefixCache, pool: FakePool) -> None:
    cache.keep(fill(cache, pool, "a" * 10)[0])
    cache.keep(fill(cache, pool, "b" * 10)[0])
    cache.drop(fill(cache, pool, "a" * 10)[0])
    assert fill(cache, pool, "c" * 17)[1] == 0
    assert cache.num_idle == 1
    assert cache.open(ids("aab"), 3, "", 2) is not None
    assert pool.copied == 9 + 2


def test_a_pinned_lane_does_not_give_way(cache: PrefixCache, pool: FakePool) -> None:
    lane = fill(cache, pool, "abc")[0]
    cache.pin(lane)
    cache.keep(lane)
    cache.keep(fill(cache, pool, "abcdef")[0])
    assert pool.held_bytes == 9


def test_pinned_lanes_go_last(cache: PrefixCache, pool: FakePool) -> None:
    pinned = fill(cache, pool, "p" * 10)[0]
    cache.pin(pinned)
    cache.keep(pinned)
    cache.keep(fill(cache, pool, "q" * 10)[0])
    cache.drop(fill(cache, pool, "c" * 20)[0])
    assert pinned.number in pool.lanes
    assert cache.open(ids("d" * 30), 30, "", 29) is not None
    assert pinned.number not in pool.lanes


def test_pinned_lanes_do_not_count_until_unpinned(pool: FakePool) -> None:
    cache = PrefixCache(pool, 0)
    lane = fill(cache, pool, "abc")[0]
    cache.pin(lane)
    cache.keep(lane)
    assert pool.held_bytes == 3
    cache.unpin(lane)
    assert pool.held_bytes == 0


def test_running_sequences_are_never_given_up(cache: PrefixCache, pool: FakePool) -> None:
    fill(cache, pool, "a" * 20)
    assert cache.open(ids("b" * 20), 20, "", 19) is None
    assert pool.held_bytes == 20


def test_clearing_gives_back_all_idle_lanes(cache: PrefixCache, pool: FakePool) -> None:
    fill(cache, pool, "running")
    cache.keep(fill(cache, pool, "abc")[0])
    cache.clear()
    assert pool.held_bytes == len("running")


@pytest.mark.parametrize("seed", range(5))
def test_what_is_taken_over_is_always_what_the_prompt_says(seed: int) -> None:
    rng = random.Random(seed)
    pool = FakePool(60)
    cache, running = PrefixCache(pool, 4), []
    for _ in range(400):
        if running and rng.random() < 0.5:
            lane = running.pop(rng.randrange(len(running)))
            (cache.keep if rng.random() < 0.7 else cache.drop)(lane)
            continue
        made = tuple(rng.choices(range(2), k=rng.randint(2, 10)))
        opened = cache.open(made, len(made), "", len(made) - 1)
        if opened is None:
            continue
        lane, common = opened
        assert pool.lanes[lane.number] == dict(enumerate(made[:common]))
        pool.lanes[lane.number].update(enumerate(made))
        cache.grow(lane, made)
        running.append(lane)
    for lane in running:
        cache.drop(lane)
    cache.clear()
    assert pool.held_bytes == 0
