"""A user's eviction policy is of one store, and its faults end nothing."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import Any

import pytest

from rag_accel.errors import ConfigError, EngineError
from rag_accel.kv.entry import LaneState
from rag_accel.kv.eviction import GuardedPolicy, LookaheadPolicy, LRUPolicy, check_policy
from rag_accel.kv.store import ChunkStore
from rag_accel.testing import EvictionPolicyContract


class Sized:
    """State of one byte."""

    nbytes = 1

    def __len__(self) -> int:
        return 1


class Unknown(LRUPolicy):
    """A policy that names a state which was never kept."""

    def victim(self) -> bytes:
        return b"never kept"


class Unhashable(LRUPolicy):
    """A policy that names no key at all."""

    def victim(self) -> bytes:
        return []  # type: ignore[return-value]


class Roots(LRUPolicy):
    """A policy that names the first state of all, whatever is behind it."""

    def victim(self) -> bytes:
        return next(iter(self._parents))


class Stale(LRUPolicy):
    """A policy that names again what is gone."""

    first: bytes | None = None

    def victim(self) -> bytes:
        self.first = self.first or super().victim()
        return self.first


def raising(name: str) -> Callable[[], LRUPolicy]:
    """Return a class of policies one method of which raises."""

    def fail(*given: object) -> None:
        raise RuntimeError(f"{name} has failed")

    return type("Raising", (LRUPolicy,), {name: fail})


FAULTY: dict[str, Callable[[], LRUPolicy]] = {
    "unknown": Unknown,
    "unhashable": Unhashable,
    "roots": Roots,
    "stale": Stale,
    **{name: raising(name) for name in ("added", "used", "removed", "began", "victim")},
}


def used_store(policy: Any) -> ChunkStore:
    """Return a store of three states that has evicted others, with a tree in it."""
    store = ChunkStore(3, policy, admits_all=True)
    state: LaneState = Sized()  # type: ignore[assignment]
    for at in range(8):
        store.began([(bytes([at]),)])
        store.put(bytes([at]), state)
        store.find(bytes([at]))
        if at % 3 == 0:
            store.put(bytes([at, 0]), state, parent=bytes([at]))
    return store


@pytest.mark.parametrize("fault", FAULTY)
def test_a_faulty_policy_gives_way_to_the_least_recently_used(
    fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="rag_accel.llm"):
        store = used_store(FAULTY[fault]())
    assert store.held_bytes == 3
    (record,) = caplog.records
    assert "an eviction policy has failed" in record.getMessage()
    assert EngineError.code in record.getMessage()
    store.clear()
    assert store.held_bytes == 0


def test_a_policy_that_raises_from_the_start_is_lru() -> None:
    assert used_store(raising("added")()).kept == used_store("lru").kept


def test_a_sound_policy_rules_and_no_warning_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert used_store(LookaheadPolicy()).kept == used_store("lookahead").kept
    assert not caplog.records


def test_an_interrupt_is_no_fault() -> None:
    class Interrupted(LRUPolicy):
        def victim(self) -> bytes:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        used_store(Interrupted())


@pytest.mark.parametrize("fault", ["unknown", "unhashable", "stale", "victim", "removed"])
def test_the_contract_sees_what_a_guard_hides(fault: str) -> None:
    contract = EvictionPolicyContract()
    contract.policy = FAULTY[fault]  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="an eviction policy has failed"):
        contract.test_a_store_keeps_to_its_bytes()


# One store


def test_a_second_store_is_refused_until_the_first_is_closed() -> None:
    mine = LookaheadPolicy()
    store = ChunkStore(3, mine)
    with pytest.raises(ConfigError, match="an eviction policy is of one engine alone"):
        ChunkStore(3, mine)
    assert used_store("lookahead").held_bytes == 3  # names are as many policies as there are stores
    store.close()
    again = ChunkStore(3, mine)
    store.close()  # of another store by now
    with pytest.raises(ConfigError, match="eviction policy"):
        GuardedPolicy(mine)
    again.close()


def test_a_store_that_is_gone_has_no_policy() -> None:
    mine = LookaheadPolicy()
    store = ChunkStore(3, mine)
    del store
    gc.collect()
    ChunkStore(3, mine).close()


def test_a_check_takes_no_policy() -> None:
    mine = LookaheadPolicy()
    for _ in range(2):
        check_policy(mine)
    ChunkStore(3, mine).close()
