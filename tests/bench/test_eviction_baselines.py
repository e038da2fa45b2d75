"""Baselines of eviction go by counts, and DepCache's by the requests that wait as well."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench.baselines.eviction import LACRPolicy, LFUPolicy
from rag_accel.errors import ConfigError
from rag_accel.kv.eviction import EvictionPolicy, LookaheadPolicy
from rag_accel.testing import EvictionPolicyContract


class TestLeastFrequentlyUsed(EvictionPolicyContract):
    """The contract, on counts."""

    def policy(self) -> LFUPolicy:
        return LFUPolicy()


class TestLocalityAware(EvictionPolicyContract):
    """The contract, on DepCache's policy."""

    def policy(self) -> LACRPolicy:
        return LACRPolicy()


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


def test_the_seldom_used_go_first_and_of_those_the_older() -> None:
    policy = LFUPolicy()
    for key in (b"a", b"b", b"c"):
        policy.added(key, 1)
    for key in (b"a", b"a", b"c", b"b"):
        policy.used(key)
    assert _evicted(policy, 3) == [b"c", b"b", b"a"]


def test_a_count_begins_again_with_the_state() -> None:
    policy = LFUPolicy()
    policy.added(b"a", 1)
    for _ in range(5):
        policy.used(b"a")
    policy.removed(b"a")
    policy.added(b"b", 1)
    policy.used(b"b")
    policy.added(b"a", 1)
    assert policy.victim() == b"a"


#: Nodes behind which others were encoded; the others are roots. 4, 13 and 14 are off the device.
_BEHIND = {2: 1, 3: 2, 8: 7, 9: 8, 11: 10, 12: 11, 15: 12, 17: 16, 5: 2, 6: 5}
_ON_DEVICE = (1, 2, 3, 7, 8, 9, 10, 11, 12, 15, 16, 17)
#: Jobs 1-3 have run. The figure prints which nodes rank lowest (9, then 8), not their counts.
_DONE = ((1, 2, 3, 10, 11, 12, 15, 16, 17), (10, 11, 12, 15, 16, 17), (1, 2, 3, 7, 10, 11, 12, 15))
_JOBS = ((1, 2, 3, 5, 6), (1, 2, 3), (7, 8, 9))


@pytest.mark.parametrize(
    ("policy", "gone"),
    [(LFUPolicy, [9, 8]), (LACRPolicy, [17, 16]), (LookaheadPolicy, [17, 16])],
)
def test_nodes_of_a_pending_job_outlive_those_that_nobody_awaits(
    policy: Callable[[], EvictionPolicy], gone: list[int]
) -> None:
    """Job 4 needs room for nodes 5 and 6 while jobs 5 and 6 wait (DepCache Fig. 9)."""
    manager = policy()
    for node in _ON_DEVICE:
        parent = _BEHIND.get(node)
        manager.added(_key(node), 1, None if parent is None else _key(parent))
    for number, job in enumerate(_DONE):
        manager.began([_keys(*each) for each in (*_DONE[number:], *_JOBS)])
        for node in job:
            manager.used(_key(node))
    manager.began([_keys(*each) for each in _JOBS])
    job = _JOBS[0]
    kept = set(_ON_DEVICE)
    assert [node for node in job if node not in kept] == [5, 6]
    for node in (node for node in job if node in kept):
        manager.used(_key(node))
    missed: list[int] = []
    for node in (5, 6):
        victim = manager.victim()
        manager.removed(victim)
        missed += victim
        manager.added(_key(node), 1, _key(_BEHIND[node]))
    assert missed == gone


def test_a_later_request_counts_for_less() -> None:
    policy = LACRPolicy(alpha=0.0, window=4)
    for number in range(4):
        policy.added(_key(number), 1)
    policy.began([(), _keys(2, 3), _keys(1, 2), _keys(1)])
    # 0: nothing; 3: 4/5; 1: 3/5 + 2/5; 2: 4/5 + 3/5
    assert _evicted(policy, 4) == list(_keys(0, 3, 1, 2))


def test_requests_behind_the_window_do_not_count() -> None:
    policy = LACRPolicy(alpha=0.0, window=1)
    policy.added(b"a", 1)
    policy.added(b"b", 1)
    policy.began([(), (b"b",), (b"a",)] + [(b"a",)] * 9)
    assert policy.victim() == b"a"


def test_without_a_window_only_the_running_request_counts_beside_the_past() -> None:
    policy = LACRPolicy(window=0)
    policy.added(b"a", 1)
    policy.added(b"b", 1)
    policy.began([(), (b"a",)])
    assert policy.victim() == b"a"
    policy.began([(b"a",)])
    assert policy.victim() == b"b"


@pytest.mark.parametrize("kind", [LFUPolicy, LACRPolicy])
def test_new_states_of_the_running_request_do_not_evict_each_other(
    kind: Callable[[], EvictionPolicy],
) -> None:
    policy = kind()
    policy.added(b"old", 1)
    for _ in range(9):
        policy.used(b"old")
    policy.began([(b"a", b"b")])
    policy.added(b"a", 1)
    assert policy.victim() == b"old"
    policy.began([])
    assert policy.victim() == b"a"


@pytest.mark.parametrize("options", [{"alpha": -0.1}, {"alpha": float("nan")}, {"window": -1}])
def test_bad_numbers_are_config_errors(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="valid: "):
        LACRPolicy(**options)  # type: ignore[arg-type]
