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

from rag_accel.engine_api import PrimitiveKind
from rag_accel.engines.retrieval.batched_search_engine import (
    ASK_ALONE,
    BatchedSearchEngine,
    StoreQuery,
)
from rag_accel.recognition.clients import UnderWay
from rag_accel.recognition.known_classes import NotAdoptedError, full_name
from rag_accel.recognition.proxies import Ask, ClientWork, ProxyClass, replaced
from rag_accel.recognition.sharing_gain import SharingGain
from rag_accel.recognition.weak_maps import WeakIdDict
from rag_accel.telemetry.shared_spans import callers_span

#: most queries of a call, where a row says nothing else: the answer is made as a whole
MAX_QUERIES = 64
#: seconds for which searches rely on the last look at their client, which each call takes again
LOOK_EVERY_S = 0.1


class ReadSearch(NamedTuple):
    """A search as a row reads it.

    Args:
        query: the part that only this search has, such as its vector.
        key: searches of equal keys may go in one call.
        kind: of searches that take about as long, such as those of a table.
    """

    query: Any
    key: Hashable
    kind: Hashable = None


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
    stand_in: Callable[[Any, SearchedClient, Ask], BatchedClient] | None = None,
    version_obstacle: Callable[[Any], str | None] = lambda store: None,
) -> ProxyClass:
    """Return what is known of a class of stores that search by a client.

    Args:
        path: attributes that lead from a store to its client, with dots between.
        methods: of the store that search.
        client: the client's row.
        unless: what switches that off.
        stand_in: makes what replaces a client for one call; a ``BatchedClient`` by default.
        version_obstacle: returns why a store's code cannot run on that.
    """
    find = attrgetter(path)

    def proxy(store: Any, ask: Ask) -> Any:
        return _leading(store, path, (stand_in or BatchedClient)(find(store), client, ask))

    def is_of_use(store: Any, ask: Ask) -> bool:
        # Its client is looked at before a search shares a call: others do not pay for that. One
        # inside of a proxy has what replaces it.
        return version_obstacle(store) is None and not isinstance(find(store), BatchedClient)

    return ProxyClass(
        methods,
        lambda store: version_obstacle(store) or client.why_not(find(store)),
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
def turn(client: Any, row: SearchedClient, read: ReadSearch) -> Iterator[bool]:
    """Hold while a search is made; gives whether it shares a call: others run, and it gains."""
    place = id(client), read.key
    running = _searches.begin(place)
    try:
        if running > 1 and not row.may_share(client):
            yield False
            return
        gain = _gains.get(client) or _gains.add(client, SharingGain())
        if running == 1:
            gain.resume(read.kind, time.perf_counter())
            yield False
        else:
            yield gain.shares(read.kind)
            gain.note(read.kind, running, time.perf_counter())
    finally:
        _searches.end(place)


def client_work(
    client: Any, read: ReadSearch, max_queries: int, search: Callable[[list[Any]], Sequence[Any]]
) -> ClientWork:
    """Return the work of a search that shares a call."""
    query = StoreQuery(read.query, read.key, search, max_queries, callers_span())
    return ClientWork(client, "store", BatchedSearchEngine, PrimitiveKind.SEARCHING, query)


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
        with turn(client, row, read) as shares:
            if not shares:
                return plain()
            search = partial(row.search_together, client, given)
            work = client_work(client, read, row.max_queries, search)
            found = ask.compute(work, plain, lambda result: result)
            return plain() if found is ASK_ALONE else found
