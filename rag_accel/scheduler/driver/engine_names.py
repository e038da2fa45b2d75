"""Engines that join a driver: their names, and their profiles as the core is told of them."""

from __future__ import annotations

import threading

from rag_accel.engine_api import Capability, EngineProfile
from rag_accel.errors import ConfigError
from rag_accel.scheduler.messages import EngineName, OwnedEngineAdded


class EngineNames:
    """The engine names in use. Thread-safe."""

    def __init__(self) -> None:
        self._names: set[EngineName] = set()
        self._lock = threading.Lock()

    def claim(self, name: str) -> EngineName:
        """Take a name; ConfigError if another engine has it."""
        key = EngineName(name)
        with self._lock:
            if key in self._names:
                raise ConfigError(
                    "an engine name was used twice",
                    where=name,
                    valid="a name not among " + ", ".join(sorted(self._names)),
                )
            self._names.add(key)
        return key

    def give_back(self, name: EngineName) -> None:
        """Let the name be taken again."""
        with self._lock:
            self._names.discard(name)


def owned_engine_added(name: EngineName, profile: EngineProfile) -> OwnedEngineAdded:
    """Return the core's event for an engine with this profile."""
    return OwnedEngineAdded(
        name,
        profile.max_batch,
        profile.max_threads,
        profile.latency.base_s,
        profile.latency.per_item_s,
        profile.stepped,
        profile.interruptible,
        Capability.ENDS_IN_TIME in profile.capabilities,
        Capability.ITEMWISE in profile.capabilities,
        Capability.BOUNDS_ITS_WORK in profile.capabilities,
        Capability.SHARES_CORES in profile.capabilities,
    )
