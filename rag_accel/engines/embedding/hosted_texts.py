"""Texts that are asked of servers: the calls in flight, and the vectors that came back.

A caller asks where he is while no other call of his group is in flight, so whoever is alone waits
for nobody. Equal texts are asked for once at a time, and vectors are cached for a while.
"""

from __future__ import annotations

import threading
import time
from asyncio import AbstractEventLoop
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rag_accel.engines.embedding.call_costs import CallCosts
from rag_accel.system.forks import forks
from rag_accel.system.locks import ForkedAnew

Rows = Sequence[npt.NDArray[np.float64]]
#: returns the vectors of a call; None if they are no lists of floats
ReadRows = Callable[[], Rows | None]
#: group, role and texts of a call
CallKey = tuple[str, str, tuple[str, ...]]

#: Groups whose times are remembered while none of their calls is in flight.
_MOST_GROUPS: Final = 1024
#: Bytes of a cached vector beyond its numbers and its text.
_ENTRY_BYTES: Final = 400


@dataclass(frozen=True, slots=True)
class CallReport:
    """A shared call that was answered.

    Args:
        texts: their number.
        seconds: from its start to its answer, less what other threads took of them.
        sending_s: seconds of processor time.
        model: which the server says has answered; empty if it says none.
    """

    texts: int
    seconds: float
    sending_s: float
    model: str = ""


@dataclass(slots=True, eq=False)
class _Group:
    costs: CallCosts = field(default_factory=CallCosts)
    in_flight: int = 0
    #: counts the models behind the group's name, as far as their answers tell them apart
    generation: int = 0
    model: str = ""
    dim: int = 0
    #: by role and texts
    flights: dict[tuple[str, tuple[str, ...]], Flight] = field(
        default_factory=dict[tuple[str, tuple[str, ...]], "Flight"]
    )


@dataclass(slots=True, eq=False)
class Flight:
    """A call in flight whose vectors others may wait for.

    Args:
        loop: that its caller needs to go on; None for a caller in a thread.
        rows: its vectors, once they are there; None if it has failed.
        followers: who wait.
    """

    loop: AbstractEventLoop | None
    followers: int = 0
    rows: Future[Rows | None] = field(default_factory=Future["Rows | None"])


@dataclass(slots=True, eq=False)
class CallTurn:
    """The task of a caller: to take vectors, to wait for a flight, or to ask.

    Args:
        rows: the vectors, where they are known.
        leader: the flight of equal texts.
        is_alone: whether to ask where the caller is, rather than in a shared call.
        end: ends the caller's own flight, with what returns its vectors if it has any; called once
            or more.
    """

    rows: Rows | None = None
    leader: Flight | None = None
    is_alone: bool = True
    end: Callable[[ReadRows | None], None] = lambda read: None

    def __del__(self) -> None:
        # One that an interrupt lost would let others wait for ever.
        self.end(None)


class HostedTexts(ForkedAnew):
    """The texts that one accelerator's programs ask of servers. Thread-safe.

    Args:
        max_bytes: of cached vectors; 0 caches none.
        max_age_s: after which a vector is asked for again.
        now: returns the time, in seconds.
    """

    def __init__(
        self, max_bytes: int, max_age_s: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_bytes, self._max_age_s, self._now = max_bytes, max_age_s, now
        self.cached = self.followed = 0
        super().__init__()

    def renew(self) -> None:
        """Forget flights, whose callers are another process's, and vectors."""
        self._lock = threading.RLock()  # an object that is collected ends its turn
        self._groups: OrderedDict[str, _Group] = OrderedDict()
        self._vectors: OrderedDict[tuple[str, str, str], _Cached] = OrderedDict()
        self._bytes = 0
        self._purged_at = self._now()

    def begin(
        self,
        key: CallKey,
        loop: AbstractEventLoop | None,
        *,
        may_follow: bool = True,
        may_ask: bool = True,
    ) -> CallTurn:
        """Return what a caller shall do; where he asks, ``end`` must follow.

        Args:
            key: what he asks for.
            loop: the one that runs in his thread.
            may_follow: whether he may wait for a flight of equal texts.
            may_ask: whether he may ask where he is.
        """
        name, role, texts = key
        with self._lock:
            group = self._group(name)
            rows = self._look_up(group, key)
            if rows is not None:
                self.cached += 1
                return CallTurn(rows)
            leader = group.flights.get((role, texts))
            if leader is not None and may_follow and leader.loop in (None, loop):
                self.followed += 1
                leader.followers += 1
                return CallTurn(leader=leader)
            is_alone = may_ask and (group.in_flight == 0 or group.costs.texts_a_call == 1)
            flight = Flight(loop)
            group.flights.setdefault((role, texts), flight)
            group.in_flight += 1
            group.costs.note_callers(group.in_flight)
            ending = _Ending(
                *(self, group, key, flight, group.generation, self._now(), is_alone),
                others=group.in_flight - 1,
            )
            return CallTurn(is_alone=is_alone, end=ending.end)

    def note(self, name: str, report: CallReport) -> None:
        """Note that a shared call of a group was answered."""
        with self._lock:
            group = self._group(name)
            group.costs.note(report.texts, report.seconds, report.sending_s)
            if report.model and report.model != group.model:
                if group.model:  # another one answers to the name
                    group.generation += 1
                group.model = report.model

    def forget(self, texts: Iterable[str]) -> None:
        """Drop the cached vectors of texts, whoever asked for them."""
        gone = frozenset(texts)
        with self._lock:
            for key in [key for key in self._vectors if key[2] in gone]:
                self._drop(key)

    def costs_of(self, name: str) -> CallCosts:
        """Return what calls of a group take."""
        with self._lock:
            return self._group(name).costs

    def _group(self, name: str) -> _Group:
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = _Group()
            if len(self._groups) > _MOST_GROUPS:
                idle = (key for key, one in self._groups.items() if one.in_flight == 0)
                self._groups.pop(next(idle, ""), None)
        self._groups.move_to_end(name)
        return group

    def _look_up(self, group: _Group, key: CallKey) -> Rows | None:
        name, role, texts = key
        found = list[npt.NDArray[np.float64]]()
        for text in texts:
            cached = self._vectors.get((name, role, text))
            if cached is None:
                return None
            if cached.generation != group.generation or cached.until < self._now():
                self._drop((name, role, text))
                return None
            self._vectors.move_to_end((name, role, text))
            found.append(cached.vector)
        return found

    def _end(self, ended: _Ending, read: ReadRows | None) -> None:
        asked, rows = ended.key[1:], None
        with self._lock:
            group = ended.group
            group.in_flight -= 1
            if group.flights.get(asked) is ended.flight:
                del group.flights[asked]
            if read is not None:
                took_s = self._now() - ended.began_at
                if ended.is_alone:
                    group.costs.note(len(ended.key[2]), took_s)
                if ended.others or group.in_flight:
                    group.costs.note_wait(took_s, is_shared=not ended.is_alone)
        try:
            if read is not None and (self._max_bytes or ended.flight.followers):
                rows = read()
            if rows is not None:
                with self._lock:
                    self._keep(ended, rows)
        finally:
            ended.flight.rows.set_result(rows)

    def _keep(self, ended: _Ending, rows: Rows) -> None:
        group = ended.group
        dim = len(rows[0])
        if group.dim not in (0, dim):  # another model answers to the name
            group.generation += 1
        group.dim = dim
        if ended.generation != group.generation or self._groups.get(ended.key[0]) is not group:
            return
        name, role, texts = ended.key
        now = self._now()
        until = now + self._max_age_s
        if now - self._purged_at > self._max_age_s:  # what nobody asks for again goes, too
            self._purged_at = now
            for key in [key for key, one in self._vectors.items() if one.until < now]:
                self._drop(key)
        for text, vector in zip(texts, rows, strict=True):
            key = (name, role, text)
            self._drop(key)
            size = vector.nbytes + 4 * len(text) + _ENTRY_BYTES
            if size <= self._max_bytes:
                self._vectors[key] = _Cached(vector, until, group.generation, size)
                self._bytes += size
        while self._bytes > self._max_bytes:
            self._drop(next(iter(self._vectors)))

    def _drop(self, key: tuple[str, str, str]) -> None:
        gone = self._vectors.pop(key, None)
        if gone is not None:
            self._bytes -= gone.size


@dataclass(frozen=True, slots=True)
class _Cached:
    vector: npt.NDArray[np.float64]
    until: float
    generation: int
    size: int


@dataclass(slots=True, eq=False)
class _Ending:
    """The end of one caller's flight, which counts once and in the process where it began."""

    texts: HostedTexts
    group: _Group
    key: CallKey
    flight: Flight
    generation: int
    began_at: float
    is_alone: bool
    others: int
    forks: int = field(default_factory=lambda: forks.number)
    is_over: bool = False

    def end(self, read: ReadRows | None) -> None:
        if not self.is_over and self.forks == forks.number:
            self.is_over = True
            self.texts._end(self, read)


def rows_of(vectors: Any) -> Rows | None:
    """Return vectors as arrays of their very numbers; None for anything but floats."""
    rows = list[npt.NDArray[np.float64]]()
    for vector in vectors:
        if type(vector) is not list or not vector or set(map(type, vector)) != {float}:
            return None
        rows.append(np.array(vector, dtype=np.float64))
    return rows
