"""Choices of the member of a pool that takes a work: by load, near to where its texts were last.

Without threads and I/O; time is that of a clock. Members may be chosen from several threads: by an
engine, and by clients of a program that ask the same servers.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rag_accel.clock import Clock, MonotonicClock
from rag_accel.errors import RagAccelError
from rag_accel.system.locks import ForkedAnew

FIRST_PAUSE_S: Final = 0.5
MOST_PAUSE_S: Final = 8.0
LONGEST_ASKED_S: Final = 120.0
"""The longest pause that a member may ask for itself, in seconds."""

MOST_KEYS: Final = 65_536
"""Beginnings and texts of prompts whose last member is remembered."""

SLACK: Final = 1.25
"""How much later than the first one may end a work that has read its texts before."""

QUICK_S: Final = 1.0
"""A member that failed sooner is tried with the first work after its pause: that costs little."""


def pause_after(failures: int, asked_s: float | None) -> float:
    """Return the seconds of a member's pause after its next failure, if it asks for none itself."""
    if asked_s is not None:
        return min(asked_s, LONGEST_ASKED_S)
    return min(MOST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures, 8))


@dataclass(frozen=True, slots=True)
class Failure:
    """An error of a member's own.

    Args:
        began_at: when the member was given the work.
        ended_at: when it failed.
        why: for people; holds nothing of the work.
        asked_s: for how long it asked to be left alone, if it did.
    """

    began_at: float
    ended_at: float
    why: str = ""
    asked_s: float | None = None


@dataclass(slots=True)
class MemberLoad:
    """The load and the state of one member.

    Args:
        items: of the works that it has now.
        works: their number.
        speed: items that it ends in a second, measured; None before the first.
        failures: errors in a row that were its own.
        failure: the last one that paused it, if it still is or has ended nothing since.
        paused_at: when that was.
        paused_until: when it may be given work again after them.
        is_due: whether it is tried before members whose speed is known.
        is_closed: whether it never will be given work.
    """

    items: int = 0
    works: int = 0
    speed: float | None = None
    failures: int = 0
    failure: Failure | None = None
    paused_at: float = -math.inf
    paused_until: float = -math.inf
    is_due: bool = True
    is_closed: bool = False


class PoolPlacement(ForkedAnew):
    """The loads of members, and where texts were last. A forked child begins with empty loads.

    Args:
        count: of members.
        clock: of services and pauses.
    """

    def __init__(self, count: int, clock: Clock | None = None) -> None:
        self._count = count
        self.clock = clock or MonotonicClock()
        super().__init__()

    def renew(self) -> None:
        self._lock = threading.RLock()
        self.loads = [MemberLoad() for _ in range(self._count)]
        self._last: OrderedDict[Hashable, int] = OrderedDict()

    def take(
        self, keys: Mapping[Hashable, int], size: int, without: Collection[int] = ()
    ) -> int | None:
        """Return the member for a work, which it has from now on; None if there is none.

        ``left`` must follow. See ``choose``.
        """
        with self._lock:
            at = self.choose(keys, size, without)
            if at is not None:
                self.pin(at, size, keys)
            return at

    def choose(
        self, keys: Mapping[Hashable, int], size: int, without: Collection[int] = ()
    ) -> int | None:
        """Return the member for a work; None if there is none that it was not tried on.

        Each member that takes work is tried once, so that its speed is known. Of all of them, those
        that would end the work within ``SLACK`` of the first, or of when that would end one more,
        are compared by how much of the prompt they had last. Where all are paused, the one whose
        pause ends first is tried: it fails as fast as it can.

        Args:
            keys: beginnings and texts of the prompt, with how long they are.
            size: of the work, in items.
            without: members that have failed it.
        """
        with self._lock:
            able = [at for at in self.open_members() if at not in without]
            if not able:
                return None
            ready = [at for at in able if self.is_ready(at)]
            if not ready:
                return min(able, key=lambda at: self.loads[at].paused_until)
            ready = [at for at in ready if self.loads[at].is_due] or ready
            first = min(ready, key=lambda at: self._order(at, size))
            latest = SLACK * self._ends_in(first, 2 * size)
            near = [at for at in ready if self._ends_in(at, size) <= latest]
            known = {at: self._known(at, keys) for at in near}
            best = max(known.values())
            if best == 0:
                return first
            known_best = (at for at in near if known[at] == best)
            return min(known_best, key=lambda at: self._order(at, size))

    def _known(self, at: int, keys: Mapping[Hashable, int]) -> int:
        """Return how much of a prompt a member had last."""
        return sum(size for key, size in keys.items() if self._last.get(key) == at)

    def _order(self, at: int, size: int) -> tuple[float, bool, int]:
        """Return what a member is chosen by for a work that none has read before."""
        return self._ends_in(at, size), self.loads[at].speed is None, at

    def _ends_in(self, at: int, size: int) -> float:
        """Return in how long about a new work would end there; at the fastest speed if unknown."""
        load = self.loads[at]
        speeds = [other.speed for other in self.loads if other.speed is not None]
        speed = load.speed if load.speed is not None else max(speeds, default=1.0)
        return (load.items + size) / speed

    def is_ready(self, at: int) -> bool:
        """Tell whether a member takes work; after a pause, one work until that has ended well."""
        load = self.loads[at]
        if load.is_closed or self.clock.now() < load.paused_until:
            return False
        return load.failures == 0 or load.works == 0

    def pin(self, at: int, size: int, keys: Mapping[Hashable, int]) -> None:
        """Note that a member has a work."""
        with self._lock:
            load = self.loads[at]
            load.items += size
            load.works += 1
            load.is_due = False
            self._remember(at, keys)

    def early(self, keys: Mapping[Hashable, int], size: int) -> int | None:
        """Return the member of a prompt's beginning: where a work with these keys would go now.

        None while that member is paused or has work. Early work is no load, no ``left`` follows,
        and it tells nothing of how fast the member is; the rest of the prompt finds the member by
        the keys.
        """
        with self._lock:
            at = self.choose(keys, size)
            if at is None or self.loads[at].works or not self.is_ready(at):
                return None
            self._remember(at, keys)
            return at

    def _remember(self, at: int, keys: Iterable[Hashable]) -> None:
        for key in keys:
            self._last[key] = at
            self._last.move_to_end(key)
        while len(self._last) > MOST_KEYS:
            self._last.popitem(last=False)

    def left(self, at: int, size: int) -> None:
        """Note that a member has a work no longer, however it ended."""
        with self._lock:
            self.loads[at].items -= size
            self.loads[at].works -= 1

    def succeeded(self, at: int, size: int, seconds: float) -> None:
        """Note that a work that has left ended well after so many seconds."""
        with self._lock:
            load = self.loads[at]
            load.failures = 0
            load.failure = None
            load.paused_until = -math.inf
            # A member serves several at once: others there have had their share of the time.
            speed = max(1, load.works + 1) * size / max(seconds, 1e-6)
            load.speed = speed if load.speed is None else 0.8 * load.speed + 0.2 * speed

    def failed(self, at: int, failure: Failure) -> None:
        """Pause a member after an error of its own; the longer, the more there were in a row.

        Errors of works that it was given before the last pause count no further: they tell nothing
        of how it is since.
        """
        with self._lock:
            load, now = self.loads[at], self.clock.now()
            is_new = load.failure is None or failure.began_at > load.paused_at
            if is_new or failure.asked_s is not None:
                pause_s = pause_after(load.failures, failure.asked_s)
                load.paused_until = max(load.paused_until, now + pause_s)
            if is_new:
                load.failures += 1
                load.failure, load.paused_at = failure, now
            load.is_due = failure.ended_at - failure.began_at <= QUICK_S

    def close(self, at: int) -> None:
        """Give a member no work any more."""
        self.loads[at].is_closed = True

    def open_members(self) -> Sequence[int]:
        """Return the members that are not closed."""
        return [at for at in range(self._count) if not self.loads[at].is_closed]


def why_of(error: BaseException) -> str:
    """Return an error in words that show nothing of any work."""
    what = error.what if isinstance(error, RagAccelError) else type(error).__name__
    status = getattr(error, "status", None)
    return f"{what} (HTTP {status})" if isinstance(status, int) else what
