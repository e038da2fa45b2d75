"""The contract of eviction policies."""

from __future__ import annotations

import random

from rag_accel.kv.eviction import EvictionPolicy
from rag_accel.kv.store import HostStore
from rag_accel.testing.checks import check


class _Sized:
    """State of a number of bytes."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def __len__(self) -> int:
        return 1


class EvictionPolicyContract:
    """Tests of an eviction policy; make them yours by inheriting and implementing ``policy``.

    A broken rule raises an AssertionError that names it.
    """

    def policy(self) -> EvictionPolicy:
        """Return a fresh policy."""
        raise NotImplementedError

    def test_the_only_state_is_the_victim(self) -> None:
        """Check that a single state is the victim, used or not."""
        policy = self.policy()
        policy.added(b"a", 1)
        check(policy.victim() == b"a", "the only state was not the victim")
        policy.used(b"a")
        check(policy.victim() == b"a", "the only state was not the victim once it was used")

    def test_asking_for_a_victim_gives_nothing_up(self) -> None:
        """Check that a second call gives the same victim."""
        policy = self.policy()
        for key in (b"a", b"b", b"c"):
            policy.added(key, 1)
        first = policy.victim()
        check(policy.victim() == first, "asking for a victim changed it")

    def test_a_removed_state_is_no_victim(self) -> None:
        """Check that a removed state is never the victim, and may come back."""
        policy = self.policy()
        policy.added(b"a", 1)
        policy.added(b"b", 1)
        policy.removed(b"a")
        check(policy.victim() == b"b", "a state that is gone was the victim")
        policy.added(b"a", 1)
        policy.removed(b"b")
        check(policy.victim() == b"a", "a state that came back was not the victim")

    def test_a_store_keeps_to_its_bytes(self) -> None:
        """Check that victims are kept states whatever is added, used and evicted."""
        chance = random.Random(0)
        store = HostStore(50, self.policy())
        for _ in range(500):
            key = bytes([chance.randrange(20)])
            if chance.random() < 0.5:
                store.find(key)
            else:
                store.put(key, _Sized(chance.randrange(1, 30)))
            check(store.held_bytes <= 50, "a store held more than its bytes")
        store.clear()
        check(store.held_bytes == 0, "a cleared store held something")
