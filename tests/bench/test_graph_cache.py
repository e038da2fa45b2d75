"""Trees are retrieved by the question, and policies are replayed by the rule of trees."""

from __future__ import annotations

from collections import Counter
from typing import get_args

import numpy as np
import pytest

from bench.baselines.eviction import BeladyPolicy, PGDSFPolicy
from bench.graph.cache import distinct_tokens, replay
from bench.graph.trees import (
    Node,
    PathGraph,
    Shape,
    letter_pieces,
    tree_stream,
)
from bench.suites import graph_cache
from rag_accel.kv.eviction import EvictionPolicy, LookaheadPolicy, LRUPolicy
from rag_accel.sample import read_library_graph
from rag_accel.testing import EvictionPolicyContract

TINY = graph_cache.Sizes(
    triples=3000,
    entities=60,
    queries=40,
    seeds=3,
    paths=8,
    window=4,
    share=0.2,
    streams=2,
)


@pytest.fixture(scope="module")
def graph() -> PathGraph:
    return PathGraph(read_library_graph(3000).triples, 60, letter_pieces, seed=0)


class TestPGDSF(EvictionPolicyContract):
    """The contract, on a baseline."""

    def policy(self) -> PGDSFPolicy:
        return PGDSFPolicy()


# The suite ---------------------------------------------------------------------------------------


class _Flat(LookaheadPolicy):
    """A policy that takes no notice of trees."""

    def added(self, key: bytes, nbytes: int, parent: bytes | None = None) -> None:
        super().added(key, nbytes)


class _Forgetful(LRUPolicy):
    """A policy that names states which are gone."""

    def removed(self, key: bytes) -> None:
        pass


@pytest.mark.parametrize("broken", [_Flat, _Forgetful])
def test_a_policy_that_breaks_the_rule_of_trees_fails_the_suite(
    broken: type[EvictionPolicy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_cache, "LFUPolicy", broken)
    wrong = graph_cache.run(True, TINY).wrong
    assert len(wrong) == 3
    assert all("broken_victims" in line and line.startswith("LFU") for line in wrong)


# Replays -----------------------------------------------------------------------------------------


def _node(key: str, tokens: int, parent: str | None = None) -> Node:
    return Node(key.encode(), parent.encode() if parent else None, tokens)


_A, _B, _C = _node("a", 2), _node("b", 3, "a"), _node("c", 4, "b")
_D = _node("d", 5)


def test_what_is_kept_is_hit_and_the_rest_is_missed() -> None:
    replayed = replay([(_A, _B), (_A, _B, _C), (_D,), (_A, _B, _C)], LRUPolicy(), 9, 0)
    # d takes the room of c and then, as that is not enough, of b
    assert replayed.missed == (5, 4, 5, 7)
    assert replayed.shares == (0, 1 - 4 / 9, 0, 1 - 7 / 9)
    assert replayed.percent(2) == pytest.approx(100 / 9)


def test_a_node_is_not_kept_at_the_price_of_its_parent() -> None:
    replayed = replay([(_A, _B, _C)] * 3, LRUPolicy(), 5, 0)
    assert replayed.missed == (9, 4, 4)


def test_a_node_larger_than_the_cache_evicts_nothing() -> None:
    assert replay([(_A,), (_D,), (_A,)], LRUPolicy(), 4, 0).missed == (2, 5, 0)


def test_a_replay_tells_the_policy_of_the_running_and_the_waiting() -> None:
    told: list[list[tuple[bytes, ...]]] = []

    class Listening(LRUPolicy):
        def began(self, requests: object) -> None:
            told.append(list(requests))  # type: ignore[call-overload]

    replay([(_A,), (_A, _B), (_D,)], Listening(), 9, 1)
    assert told == [[(b"a",), (b"a", b"b")], [(b"a", b"b"), (b"d",)], [(b"d",)]]


@pytest.mark.parametrize("shape", get_args(Shape))
def test_with_room_for_all_whatever_was_there_before_is_hit(shape: Shape, graph: PathGraph) -> None:
    requests = tree_stream(graph, shape, 30, 3, 8, 0)
    seen: set[bytes] = set()
    expected: list[int] = []
    for request in requests:
        expected.append(sum(node.tokens for node in request if node.key not in seen))
        seen.update(node.key for node in request)
    for policy in (LRUPolicy, LookaheadPolicy):
        assert list(replay(requests, policy(), distinct_tokens(requests), 4).missed) == expected


def test_belady_is_not_beaten_by_any_order_of_eviction() -> None:
    """Compare with the best of all choices of victims, on flat nodes of one token."""
    draw = np.random.default_rng(0)
    for _ in range(20):
        keys = draw.integers(0, 5, 10).tolist()
        requests = [(_node(str(key), 1),) for key in keys]
        belady = BeladyPolicy([tuple(node.key for node in request) for request in requests])
        assert sum(replay(requests, belady, 3, 0).missed) == _fewest_misses(tuple(keys))


def _fewest_misses(keys: tuple[int, ...], kept: frozenset[int] = frozenset()) -> int:
    if not keys:
        return 0
    key, rest = keys[0], keys[1:]
    if key in kept:
        return _fewest_misses(rest, kept)
    if len(kept) < 3:
        return 1 + _fewest_misses(rest, kept | {key})
    return 1 + min(_fewest_misses(rest, kept - {victim} | {key}) for victim in kept)


def test_the_clock_of_pgdsf_outdates_old_counts() -> None:
    policy = PGDSFPolicy()
    policy.added(b"old", 1)
    for _ in range(3):
        policy.used(b"old")
    for number in range(20):
        policy.added(str(number).encode(), 1)
        if number:
            victim = policy.victim()
            policy.removed(victim)
            if victim == b"old":
                break
    else:
        pytest.fail("an old favourite was never evicted")


# Trees and streams -------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", get_args(Shape))
def test_a_request_has_every_node_once_and_parents_first(shape: Shape, graph: PathGraph) -> None:
    for request in tree_stream(graph, shape, 10, 3, 8, 0):
        seen: set[bytes] = set()
        for node in request:
            assert node.key not in seen
            assert node.parent is None or node.parent in seen
            assert node.tokens > 0
            seen.add(node.key)
        assert sum(node.parent is None for node in request) == 3


def test_a_node_is_the_same_in_every_request(graph: PathGraph) -> None:
    known: dict[bytes, Node] = {}
    for request in tree_stream(graph, "zipf", 30, 3, 8, 0):
        for node in request:
            assert known.setdefault(node.key, node) == node


def test_streams_ask_again_by_their_shape(graph: PathGraph) -> None:
    def roots(shape: Shape) -> list[bytes]:
        stream = tree_stream(graph, shape, 100, 3, 2, 0)
        return [node.key for request in stream for node in request if node.parent is None]

    most = {shape: Counter(roots(shape)).most_common(1)[0][1] for shape in get_args(Shape)}
    assert most["zipf"] > 2 * most["uniform"]
    assert roots("zipf") == roots("zipf")
