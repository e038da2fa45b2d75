"""A knowledge graph in a database that speaks Bolt: one round trip a hop for all requests."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rag_accel.engine_api import LatencyModel
from rag_accel.engines.knowledge.bolt.reader import BoltAccess, BoltReader
from rag_accel.engines.knowledge.bolt.statements import GraphSchema
from rag_accel.engines.knowledge.bolt.view import LEAST_SHARED, BoltView
from rag_accel.errors import ClosedError, ConfigError

if TYPE_CHECKING:
    from rag_accel.engines.knowledge.engine import KnowledgeEngine

# Measured on a Neo4j 5.26 of the same machine, one hop: 6 ms for 1 entity, 13 ms for 16; the
# scheduler refines it.
_FIRST_GUESS = LatencyModel(base_s=0.006, per_item_s=0.0005)


class BoltGraph:
    """The entities and relations of a Neo4j, or of another server that speaks Bolt.

    The entities are the nodes with one label; their names and the types of the relationships
    between them make the triples. The graph is read in transactions of its own; nothing is written
    or cached, so every hop sees the data committed by then. Requests of one tenant that wait for a
    hop share a query; graphs never share one, so other credentials, databases or bookmarks need
    another ``BoltGraph``. Give it as
    ``Accelerator(graph=...)``, or several by ``namespace`` as ``KnowledgeEngine(graphs)``.

    It may be given to several accelerators and asked from any thread: each engine has queries and
    names of its own.

    An engine has up to ``in_flight`` queries under way. In a shared query the server counts the
    edges of an entity before it reads them; a request that meets one with more than
    ``shared_edges`` is asked for again, alone, while the others have their answer, and at once
    alone from then on. Requests alone leave one query free for those that share one.

    Links by names are exact, in case as well; by words and by vector they are those of the index.

    A database needs an index on the property ``name`` of the label, or each hop reads all its
    entities. Where an entity has more edges than ``Expansion.fan_out`` the server chooses, in the
    order of code points as Neo4j does; a server that orders texts otherwise may choose others.

    An exception of the driver's passes through as it is, with a note: ``AuthError`` where the login
    was refused, ``ServiceUnavailable`` where the server is gone, ``ClientError`` where an index is
    missing or a query took longer than ``timeout_s``.

    Args:
        driver: from ``neo4j.GraphDatabase.driver``; it stays the caller's, who closes it.
        database: its name; ``None`` for the home database of the user.
        auth: other credentials than the driver's, as ``neo4j.basic_auth`` returns them.
        impersonated_user: the user whose rights apply instead.
        bookmarks: what must have been written before a query reads, as ``neo4j.Bookmarks``; by
            default what the driver's ``execute_query`` has written.
        timeout_s: longest time of a query on the server; ``None`` leaves it to the server.
        label: the label of entities.
        name: the property with an entity's name.
        text: the property with the text of an entity, if there is one.
        text_index: the full-text index for links by words, if there is one.
        vector_index: the vector index for links by vector, if there is one.
        max_names: names kept before requests that begin later get a new view with none.
        in_flight: most queries of one engine under way at once, from 2 to 64, each on a connection
            of the driver's pool.
        shared_edges: a request shares no query for entities with more edges than this one way. With
            several entities it is the bound of all of them, but never less than 256 for each.

    Raises:
        ConfigError: for an asynchronous driver, a bad bound or a bad name.
    """

    def __init__(
        self,
        driver: Any,
        *,
        database: str | None = None,
        auth: Any = None,
        impersonated_user: str | None = None,
        bookmarks: Any = None,
        timeout_s: float | None = 30.0,
        label: str = "__Entity__",
        name: str = "id",
        text: str | None = None,
        text_index: str | None = None,
        vector_index: str | None = None,
        max_names: int = 1_000_000,
        in_flight: int = 4,
        shared_edges: int = 4_096,
    ) -> None:
        _check_bound("in_flight", in_flight, 2, 64)
        _check_bound("shared_edges", shared_edges, LEAST_SHARED, 2**31)
        access = BoltAccess(database, auth, impersonated_user, bookmarks, timeout_s)
        self._reader = BoltReader(driver, access)
        self._schema = GraphSchema(label, name, text)
        self._indexes = {"text_index": text_index, "vector_index": vector_index}
        for option, index in self._indexes.items():
            _check_index(option, index)
        self._max_names = max_names
        #: the queries of one engine that may be under way at once
        self.in_flight = in_flight
        self._shared_edges = shared_edges
        self._versions = itertools.count()
        self._is_closed = threading.Event()
        self._views = self.for_engine()

    @property
    def trips(self) -> int:
        """Return how many queries were sent so far."""
        return self._reader.trips

    @property
    def timeout_s(self) -> float | None:
        return self._reader.timeout_s

    def view(self) -> BoltView:
        """Return the view that requests which begin now share, where no engine has its own.

        Raises:
            ClosedError: after ``close``.
        """
        return self._views.view()

    def for_engine(self) -> BoltViews:
        """Return this graph with views and names of its own; it closes with this one."""
        return BoltViews(self._new_view, self._max_names, self._is_closed)

    def as_engine(self) -> KnowledgeEngine:
        """Return an engine over this graph; it computes nothing on this machine."""
        from rag_accel.engines.knowledge.engine import KnowledgeEngine

        return KnowledgeEngine(self, max_threads=0, latency=_FIRST_GUESS)

    def close(self) -> None:
        """Forget the names; the driver stays open."""
        self._is_closed.set()
        self._views.close()

    def _new_view(self) -> BoltView:
        return BoltView(
            self._reader, self._schema, self._indexes, next(self._versions), self._shared_edges
        )


class BoltViews:
    """The views of a graph that one engine uses, or one program without an engine. Thread-safe.

    Args:
        make: returns a new view.
        max_names: a view with more names is given to no further request.
        is_closed: set once the graph is closed.
    """

    def __init__(
        self, make: Callable[[], BoltView], max_names: int, is_closed: threading.Event
    ) -> None:
        self._make = make
        self._max_names = max_names
        self._is_closed = is_closed
        self._view: BoltView | None = make()

    def view(self) -> BoltView:
        """Return the view that requests which begin now share.

        Raises:
            ClosedError: after the graph was closed.
        """
        view = self._view
        if view is None or self._is_closed.is_set():
            raise ClosedError("the knowledge graph is closed", where="BoltGraph.view")
        if view.num_names > self._max_names:
            # Two threads may make one each; each is right, and the last one stays.
            view = self._view = self._make()
        return view

    def close(self) -> None:
        """Forget the names."""
        self._view = None


def _check_bound(option: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(
            "bad bound of a graph's queries",
            where=option,
            found=repr(value),
            valid=f"an int from {least} to {most}",
        )


def _check_index(option: str, index: str | None) -> None:
    if index is not None and not (isinstance(index, str) and index):
        raise ConfigError("bad name of an index", where=option, found=repr(index), valid="a text")
