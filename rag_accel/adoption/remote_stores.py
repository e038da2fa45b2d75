"""Stores on servers: one row for each class of clients whose calls take several searches.

A store's own methods run as ever, on a client whose searches wait for those of other callers while
a call is in flight. A row is all that is known of a class.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from operator import attrgetter
from typing import Any, NamedTuple

from rag_accel.adoption.clients import UnderWay
from rag_accel.adoption.known_classes import NotAdoptedError
from rag_accel.adoption.proxies import Ask, ClientWork, ProxyClass, replaced
from rag_accel.engine_api import PrimitiveKind
from rag_accel.engines.retrieval.batched_search_engine import (
    ASK_ALONE,
    BatchedSearchEngine,
    StoreQuery,
)
from rag_accel.system.classes import full_name
from rag_accel.system.locks import RenewedLock
from rag_accel.system.weak_maps import WeakIdDict
from rag_accel.telemetry.shared_spans import callers_span

#: least searches by which a way is measured
EPOCH = 16
#: the same by how many run at once: those of a call end together
ROUNDS = 4
#: epochs until the slower way is measured again
TRY_OTHER = 64
#: most of the time of shared searches that others may take, to be preferred: they load the server
WORTH_SHARE = 0.9
#: by what the number of searches at once changes until both ways are measured again
OTHER_LOAD = 2.0


class _Cost(NamedTuple):
    seconds: float
    running: float


@dataclass(slots=True, eq=False)
class _Epoch:
    """Searches that are made the same way: sharing calls, or each by itself.

    Of the first ``skipped`` to end, some began the other way. The time of a search is by Little's
    law: those that are the last to end are missed in no mean of times.
    """

    shares: bool
    skipped: int = 0
    count: int = 0
    seconds: float = 0.0
    running: int = 0

    @property
    def is_over(self) -> bool:
        return self.count >= self.skipped + max(EPOCH, ROUNDS * self.skipped)

    def note(self, running: int, seconds: float) -> None:
        self.count += 1
        if self.count > self.skipped:
            self.seconds += seconds
            self.running += running

    def cost(self) -> _Cost:
        count = self.count - self.skipped
        running = self.running / count
        return _Cost(running * self.seconds / count, running)


class SharingGain:
    """The times of a client's searches that overlap. Used from any thread.

    All searches go the same way for an epoch, so that each way is measured by itself.
    """

    def __init__(self) -> None:
        self._lock = RenewedLock()
        self._epoch = _Epoch(True)
        self._costs: dict[bool, _Cost] = {}
        self._epochs = 0
        #: when a search last ended, or the first one began
        self._last = 0.0

    def shares(self) -> bool:
        """Return whether a search is to share a call."""
        return self._epoch.shares

    def resume(self, now: float) -> None:
        """Count no time until now, when a search begins without another."""
        with self._lock.lock:
            self._last = now

    def note(self, running: int, now: float) -> None:
        """Learn from a search that has ended, and began as the last of ``running``."""
        with self._lock.lock:
            self._epoch.note(running, now - self._last)
            self._last = now
            if self._epoch.is_over:
                self._begin_next(self._epoch.shares, self._epoch.cost())

    def _begin_next(self, ended: bool, cost: _Cost) -> None:
        self._epochs += 1
        before, self._costs[ended] = self._costs.get(ended, cost), cost
        if not 1 / OTHER_LOAD <= cost.running / before.running <= OTHER_LOAD:
            self._costs.pop(not ended, None)
        self._epoch = _Epoch(self._shares_next(ended), round(cost.running))

    def _shares_next(self, ended: bool) -> bool:
        if len(self._costs) < 2:
            return not ended
        shares = self._costs[False].seconds > WORTH_SHARE * self._costs[True].seconds
        return shares != (self._epochs % TRY_OTHER == 0)


#: most queries of a call, where a row says nothing else: the answer is made as a whole
MAX_QUERIES = 64
#: seconds for which searches rely on the last look at their client, which each call takes again
LOOK_EVERY_S = 0.1


class ReadSearch(NamedTuple):
    """A search as a row reads it.

    Args:
        query: the part that only this search has, such as its vector.
        key: searches of equal keys may go in one call.
    """

    query: Any
    key: Hashable


@dataclass(frozen=True, slots=True)
class SearchedClient:
    """A class of clients that search a store on a server.

    Args:
        name: its full name.
        method: by which stores search.
        parameters: of that method; in another version they are others.
        check: raises ``NotAdoptedError`` where something of a client may look at who calls. Asked
            before each call that searches share.
        read: returns a search, given a client and its arguments by name, or None if it cannot
            share a call: some of it cannot be compared, or belongs to its caller.
        search: makes one call, given a client, the arguments of its first search by name and the
            queries of all; returns what ``method`` would return for each.
        max_queries: most queries of a call.
    """

    name: str
    method: str
    parameters: frozenset[str]
    check: Callable[[Any], None]
    read: Callable[[Any, Mapping[str, Any]], ReadSearch | None]
    search: Callable[[Any, Mapping[str, Any], list[Any]], Sequence[Any]]
    max_queries: int = MAX_QUERIES

    def may_share(self, client: Any) -> bool:
        """Tell whether searches of a client share calls, as was found ``LOOK_EVERY_S`` ago."""
        looked_at, refusal = _looks.get(client) or (-math.inf, None)
        if time.monotonic() - looked_at > LOOK_EVERY_S:
            refusal = self.why_not(client)
            _looks.forget(client)
            _looks.add(client, (time.monotonic(), refusal))
        return refusal is None

    def search_together(
        self, client: Any, given: Mapping[str, Any], queries: list[Any]
    ) -> Sequence[Any]:
        """Make one call; raises ``NotAdoptedError`` where a client has changed since its look."""
        self.check(client)
        return self.search(client, given, queries)

    def why_not(self, client: Any) -> str | None:
        """Return why searches of a client share no calls; None if they do."""
        if isinstance(client, BatchedClient):  # of a proxy, whose search shared no call
            alone = "the store itself makes a search that overlaps no other, or gains from no other"
            return client.why_not() or alone
        try:
            if full_name(type(client)) != self.name:
                raise NotAdoptedError(f"its client is a {full_name(type(client))}", self.name)
            if (
                _signature(type(client), self.method).parameters.keys() - {"self"}
                != self.parameters
            ):
                raise NotAdoptedError(f"this version's {self.method} has other parameters")
            self.check(client)
        except NotAdoptedError as error:
            return str(error)
        except (AttributeError, KeyError, TypeError) as error:  # its insides are others
            return f"this version of {self.name} is not known: {type(error).__name__}"
        return None


#: when each client was looked at, and why its searches share no calls
_looks = WeakIdDict[tuple[float, str | None]]()


@cache
def _signature(cls: type, method: str) -> inspect.Signature:
    return inspect.signature(getattr(cls, method))


def remote_store_row(
    path: str,
    methods: tuple[str, ...],
    client: SearchedClient,
    unless: tuple[str, ...],
) -> ProxyClass:
    """Return what is known of a class of stores that search by a client.

    Args:
        path: attributes that lead from a store to its client, with dots between.
        methods: of the store that search.
        client: the client's row.
        unless: what switches that off.
    """
    find = attrgetter(path)

    def proxy(store: Any, ask: Ask) -> Any:
        return _leading(store, path, BatchedClient(find(store), client, ask))

    def is_of_use(store: Any, ask: Ask) -> bool:
        # Its client is looked at before a search shares a call: others do not pay for that. One
        # inside of a proxy has what replaces it.
        return not isinstance(find(store), BatchedClient)

    return ProxyClass(
        methods,
        lambda store: client.why_not(find(store)),
        proxy,
        "store",
        "its own methods run; searches that wait at the same time go in one call",
        unless,
        is_of_use=is_of_use,
    )


def _leading(obj: Any, path: str, end: Any) -> Any:
    """Return an object of the same state, but for that to which a path leads."""
    name, _, rest = path.partition(".")
    return replaced(obj, **{name: _leading(getattr(obj, name), rest, end) if rest else end})


_searches = UnderWay()
_gains = WeakIdDict[SharingGain]()


@contextmanager
def _turn(client: Any, row: SearchedClient, read: ReadSearch) -> Iterator[bool]:
    """Hold while a search is made; gives whether it shares a call: others run, and it gains."""
    place = id(client), read.key
    running = _searches.begin(place)
    try:
        if running > 1 and not row.may_share(client):
            yield False
            return
        gain = _gains.get(client) or _gains.add(client, SharingGain())
        if running == 1:
            gain.resume(time.perf_counter())
            yield False
        else:
            yield gain.shares()
            gain.note(running, time.perf_counter())
    finally:
        _searches.end(place)


class BatchedClient:
    """A client of a store whose searches go together with those of other callers.

    Args:
        client: whose attributes all others are.
        row: of its class.
        ask: submits a search.
    """

    def __init__(self, client: Any, row: SearchedClient, ask: Ask) -> None:
        self._batched = client, row, ask

    def __getattr__(self, name: str) -> Any:
        client, row, _ = self._batched
        return self._search if name == row.method else getattr(client, name)

    def why_not(self) -> str | None:
        """Return why no search shares a call; None if those do that overlap."""
        client, row, _ = self._batched
        return row.why_not(client)

    def _search(self, *args: Any, **kwargs: Any) -> Any:
        client, row, ask = self._batched
        plain = partial(getattr(client, row.method), *args, **kwargs)
        given: Mapping[str, Any] = {}
        try:
            bound = _signature(type(client), row.method).bind(client, *args, **kwargs)
            given = dict(list(bound.arguments.items())[1:])
            read = row.read(client, given)
        except Exception:  # the client itself says what is wrong, if anything is
            read = None
        if read is None:
            return plain()
        with _turn(client, row, read) as shares:
            if not shares:
                return plain()
            search = partial(row.search_together, client, given)
            query = StoreQuery(read.query, read.key, search, row.max_queries, callers_span())
            work = ClientWork(client, "store", BatchedSearchEngine, PrimitiveKind.SEARCHING, query)
            found = ask.compute(work, plain, lambda result: result)
            return plain() if found is ASK_ALONE else found
