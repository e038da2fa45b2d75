"""A guard of users' eviction policies: a fault of theirs ends no request."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from weakref import WeakValueDictionary

from rag_accel.errors import ConfigError, EngineError
from rag_accel.kv.eviction.lru import LRUPolicy
from rag_accel.kv.eviction.protocol import EvictionPolicy
from rag_accel.system.locks import RenewedLock

logger = logging.getLogger("rag_accel.llm")

_lock = RenewedLock()
#: of each policy object in use, by its id, which lives as long as its guard
_guards: WeakValueDictionary[int, GuardedPolicy] = WeakValueDictionary()


class GuardedPolicy:
    """A user's policy for one store, and least recently used from its first fault on.

    A fault is an exception, or a victim that is not kept or has others behind it. It is logged as a
    warning, once; the policy is not called again, as it may believe anything by then.

    Args:
        policy: the user's object.

    Raises:
        ConfigError: another store that is not closed has the same object.
    """

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._fallback = LRUPolicy()
        #: says what its first fault was; None while there was none
        self.error: EngineError | None = None
        with _lock.lock:
            if id(policy) in _guards:
                raise ConfigError(
                    "an eviction policy is of one engine alone",
                    where="eviction",
                    found=f"{type(policy).__name__}, in use by an engine that is not closed",
                    valid="an object of its own for each engine",
                    hint="make another object, or close the other engine first",
                )
            _guards[id(policy)] = self

    def added(self, key: bytes, nbytes: int, parent: bytes | None = None) -> None:
        """Tell the policy of a new state."""
        self._fallback.added(key, nbytes, parent)
        if parent is None:
            self._tell(lambda: self._policy.added(key, nbytes))
        else:
            self._tell(lambda: self._policy.added(key, nbytes, parent))

    def used(self, key: bytes) -> None:
        """Tell the policy of a use."""
        self._fallback.used(key)
        self._tell(lambda: self._policy.used(key))

    def removed(self, key: bytes) -> None:
        """Tell the policy of a removed state."""
        self._fallback.removed(key)
        self._tell(lambda: self._policy.removed(key))

    def began(self, requests: Sequence[Collection[bytes]]) -> None:
        self._tell(lambda: self._policy.began(requests))

    def victim(self) -> bytes:
        """Return the policy's victim; that of the fallback where it has failed."""
        if self.error is None:
            try:
                victim = self._policy.victim()
                if self._fallback.is_leaf(victim):
                    return victim
                self._fail(f"the victim {victim!r}, which is not kept or has others behind it")
            except Exception as error:
                self._fail(f"{type(error).__name__}: {error}", error)
        return self._fallback.victim()

    def release(self) -> None:
        """Let another store have the policy."""
        with _lock.lock:
            if _guards.get(id(self._policy)) is self:
                del _guards[id(self._policy)]

    def _tell(self, call: Callable[[], object]) -> None:
        if self.error is not None:
            return
        try:
            call()
        except Exception as error:
            self._fail(f"{type(error).__name__}: {error}", error)

    def _fail(self, found: str, error: Exception | None = None) -> None:
        self.error = EngineError(
            "an eviction policy has failed, and the least recently used goes first from now on",
            where=type(self._policy).__name__,
            found=found,
            valid="a victim among the kept states that has none behind it",
            hint="check it with rag_accel.testing.EvictionPolicyContract",
        )
        logger.warning("%s", self.error, exc_info=error)
