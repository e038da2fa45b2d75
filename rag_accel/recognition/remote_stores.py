"""Stores on servers: one row for each class of clients whose calls take several searches.

A store's own methods run as ever, on a client whose searches wait for those of other callers while
a call is in flight. A row is all that is known of a class.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
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
from rag_accel.telemetry.shared_spans import callers_span

#: most queries of a call, where a row says nothing else: the answer is made as a whole
MAX_QUERIES = 64


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
            in every call.
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

    def why_not(self, client: Any) -> str | None:
        """Return why searches of a client share no calls; None if they do."""
        if isinstance(client, BatchedClient):  # of a proxy, whose search shared no call
            alone = "the store itself makes a search that overlaps no other"
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


@cache
def _signature(cls: type, method: str) -> inspect.Signature:
    return inspect.signature(getattr(cls, method))


def remote_store_row(
    attribute: str, methods: tuple[str, ...], client: SearchedClient, unless: tuple[str, ...]
) -> ProxyClass:
    """Return what is known of a class of stores that search by the client in an attribute."""

    def proxy(store: Any, ask: Ask) -> Any:
        return replaced(store, **{attribute: BatchedClient(getattr(store, attribute), client, ask)})

    return ProxyClass(
        methods,
        lambda store: client.why_not(getattr(store, attribute)),
        proxy,
        "store",
        "its own methods run; searches that wait at the same time go in one call",
        unless,
        # Its client is looked at before a search shares a call: others do not pay for that.
        is_of_use=lambda store, ask: True,
    )


_searches = UnderWay()


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
        place = id(client), read.key
        is_alone = _searches.begin(place)
        try:
            if is_alone or self.why_not() is not None:  # nothing is to be shared
                return plain()
            query = StoreQuery(
                *(read.query, read.key, partial(row.search, client, given), row.max_queries),
                callers_span(),
            )
            kind = PrimitiveKind.SEARCHING
            work = ClientWork(client, "store", BatchedSearchEngine, kind, query)
            found = ask(work, plain, lambda result: result)
            return plain() if found is ASK_ALONE else found
        finally:
            _searches.end(place)
