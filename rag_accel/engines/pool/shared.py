"""The placement of a pool whose members are also chosen elsewhere, from several threads."""

from __future__ import annotations

import threading
from collections.abc import Collection, Hashable, Mapping, Sequence

from rag_accel.clock import Clock, MonotonicClock
from rag_accel.engines.pool.placement import Failure, MemberLoad, PoolPlacement
from rag_accel.system.locks import ForkedAnew


class SharedPlacement(ForkedAnew):
    """A ``PoolPlacement`` with a clock and a lock. A forked child begins with empty loads.

    Args:
        count: of members.
        clock: of services and pauses.
    """

    def __init__(self, count: int, clock: Clock | None = None) -> None:
        self._count = count
        self.clock = clock or MonotonicClock()
        super().__init__()

    def renew(self) -> None:
        self._lock = threading.Lock()
        self._placement = PoolPlacement(self._count)

    def take(
        self, keys: Mapping[Hashable, int], size: int, without: Collection[int] = ()
    ) -> int | None:
        """Return the member for a work, which it has from now on; None if there is none.

        ``left`` must follow. See ``PoolPlacement.choose``.
        """
        with self._lock:
            at = self._placement.choose(keys, size, self.clock.now(), without)
            if at is not None:
                self._placement.began(at, size, keys)
            return at

    def early(self, keys: Mapping[Hashable, int], size: int) -> int | None:
        """Return the member of a beginning; no ``left`` follows. See ``PoolPlacement.early``."""
        with self._lock:
            return self._placement.early(keys, size, self.clock.now())

    def pin(self, at: int, size: int, keys: Mapping[Hashable, int]) -> None:
        """Note that a member has a work that no other could have."""
        with self._lock:
            self._placement.began(at, size, keys)

    def left(self, at: int, size: int) -> None:
        """Note that a member has a work no longer, however it ended."""
        with self._lock:
            self._placement.left(at, size)

    def succeeded(self, at: int, size: int, seconds: float) -> None:
        """Note that a work that has left ended well after so many seconds."""
        with self._lock:
            self._placement.succeeded(at, size, seconds)

    def failed(self, at: int, failure: Failure) -> None:
        """Pause a member after an error of its own, or for as long as it asked for."""
        with self._lock:
            self._placement.failed(at, failure, self.clock.now())

    def close(self, at: int) -> None:
        """Give a member no work any more."""
        with self._lock:
            self._placement.close(at)

    def open_members(self) -> Sequence[int]:
        """Return the members that are not closed."""
        with self._lock:
            return self._placement.open_members()

    def load(self, at: int) -> MemberLoad:
        """Return the load of a member; it goes on changing."""
        return self._placement.loads[at]
