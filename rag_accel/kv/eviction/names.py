"""Eviction policies by their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rag_accel.errors import ConfigError
from rag_accel.kv.eviction.guarded import GuardedPolicy
from rag_accel.kv.eviction.lookahead import LookaheadPolicy
from rag_accel.kv.eviction.lru import LRUPolicy
from rag_accel.kv.eviction.protocol import EvictionPolicy

POLICIES: Mapping[str, Callable[[], EvictionPolicy]] = {
    "lru": LRUPolicy,
    "lookahead": LookaheadPolicy,
}
_METHODS = ("added", "used", "removed", "began", "victim")


def eviction_policy(policy: str | EvictionPolicy) -> EvictionPolicy:
    """Return a fresh policy by its name, or a guard of a user's object, of which there is one.

    Raises:
        ConfigError: as ``check_policy``, and if another guard of the object is in use.
    """
    check_policy(policy)
    return POLICIES[policy]() if isinstance(policy, str) else GuardedPolicy(policy)


def check_policy(policy: str | EvictionPolicy) -> None:
    """Check the name of a policy, or an object that is to be one.

    Raises:
        ConfigError: if there is none of that name, or the object lacks methods of a policy.
    """
    names = ", ".join(repr(name) for name in POLICIES)
    if isinstance(policy, str):
        if policy not in POLICIES:
            raise ConfigError(
                "unknown eviction policy",
                where="eviction",
                found=repr(policy),
                valid=f"{names} or an EvictionPolicy",
                hint="LFU and LACR are opponents in the benchmarks: the project's repository has "
                "them in bench/baselines/eviction.py; an object of such a class can be given",
            )
        return
    missing = [name for name in _METHODS if not callable(getattr(policy, name, None))]
    if missing or isinstance(policy, type):
        raise ConfigError(
            "no eviction policy",
            found=repr(policy),
            valid=f"{names} or an object with the methods {', '.join(_METHODS)}",
            hint="give an instance, not its class" if isinstance(policy, type) else None,
        )
