"""Policies say what goes first, and a second request says what is worth it."""

from __future__ import annotations

import pytest

from rag_accel.kv.eviction import LRUPolicy, SecondHitAdmission
from rag_accel.testing import EvictionPolicyContract


class TestLeastLatelyUsed(EvictionPolicyContract):
    """The contract, on the policy that is used by default."""

    def policy(self) -> LRUPolicy:
        return LRUPolicy()


class _Forgetful(LRUPolicy):
    """A policy that names states which are gone."""

    def removed(self, key: bytes) -> None:
        pass


class TestForgetful:
    def test_the_contract_sees_a_broken_policy(self) -> None:
        contract = EvictionPolicyContract()
        contract.policy = _Forgetful  # type: ignore[method-assign]
        with pytest.raises(AssertionError, match="gone"):
            contract.test_a_removed_state_is_no_victim()


def test_what_was_used_longest_ago_goes_first() -> None:
    policy = LRUPolicy()
    for key in (b"a", b"b", b"c"):
        policy.added(key, 1)
    policy.used(b"a")
    assert policy.victim() == b"b"


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
