"""The contract of eviction policies."""

from __future__ import annotations

import random

from rag_accel.kv.eviction import EvictionPolicy, GuardedPolicy
from rag_accel.kv.store import ChunkStore
from rag_accel.testing.checks import check


class _Sized:
    """State of a number of bytes."""

    seen: frozenset[str] = frozenset()

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def having_seen(self, digests: frozenset[str]) -> _Sized:
        raise NotImplementedError

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

    def test_a_parent_goes_after_its_children(self) -> None:
        """Check that only leaves are victims, whatever was used and waits."""
        policy = self.policy()
        policy.added(b"a", 1)
        policy.added(b"b", 1, b"a")
        policy.added(b"c", 1, b"b")
        policy.added(b"d", 1, b"a")
        for key in (b"b", b"c", b"d", b"c"):
            policy.used(key)
        policy.began([(b"c", b"d")])
        gone: list[bytes] = []
        for _ in range(4):
            gone.append(policy.victim())
            policy.removed(gone[-1])
        check(gone.index(b"c") < gone.index(b"b"), "a parent was the victim before its child")
        check(gone[-1] == b"a", "a root was the victim before all behind it")

    def test_what_waits_may_be_unknown_and_ends(self) -> None:
        """Check that keys which are not kept may wait, and that each call replaces the last."""
        policy = self.policy()
        for key in (b"a", b"b"):
            policy.added(key, 1)
        for waiting in ([(b"a", b"z", b"a"), ()], [(b"z",)], [], [(b"b",)] * 100, []):
            policy.began(waiting)
            check(policy.victim() in (b"a", b"b"), "the victim was not a kept state")
        policy.removed(b"a")
        check(policy.victim() == b"b", "the only state was not the victim")

    def test_no_child_is_kept_without_its_parent(self) -> None:
        """Check random trees under random uses and windows: victims are kept, and leaves."""
        chance = random.Random(0)
        policy = self.policy()
        parents: dict[bytes, bytes | None] = {}
        for _ in range(1000):
            key = bytes([chance.randrange(40)])
            if chance.random() < 0.2:
                policy.began([chance.choices(list(parents) or [key], k=3) for _ in range(5)])
            if key in parents:
                policy.used(key)
            else:
                parent = chance.choice([None, *parents])
                policy.added(key, chance.randrange(1, 9), parent)
                parents[key] = parent
            while len(parents) > 20:
                victim = policy.victim()
                check(victim in parents, "a state that is gone was the victim")
                check(victim not in parents.values(), "a parent was the victim before its child")
                policy.removed(victim)
                del parents[victim]

    def test_a_store_keeps_to_its_bytes(self) -> None:
        """Check that victims are kept states whatever is added, used and evicted."""
        chance = random.Random(0)
        guard = GuardedPolicy(self.policy())
        store = ChunkStore(50, guard)
        for _ in range(500):
            key = bytes([chance.randrange(20)])
            if chance.random() < 0.5:
                store.find(key)
            else:
                store.put(key, _Sized(chance.randrange(1, 30)))
            check(store.held_bytes <= 50, "a store held more than its bytes")
            check(guard.error is None, str(guard.error))
        store.clear()
        check(store.held_bytes == 0, "a cleared store held something")
