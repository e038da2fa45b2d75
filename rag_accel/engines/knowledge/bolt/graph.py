"""A knowledge graph in a database that speaks Bolt: one round trip a hop for all requests."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from rag_accel.engine_api import LatencyModel
from rag_accel.engines.knowledge.bolt.reader import BoltAccess, BoltReader
from rag_accel.engines.knowledge.bolt.statements import GraphSchema
from rag_accel.engines.knowledge.bolt.view import BoltView
from rag_accel.errors import ClosedError, ConfigError

if TYPE_CHECKING:
    from rag_accel.engines.knowledge.engine import KnowledgeEngine

# Measured on a Neo4j 5.26 of the same machine, one hop: 6 ms for 1 entity, 13 ms for 16; the
# scheduler refines it.
_FIRST_GUESS = LatencyModel(base_s=0.006, per_item_s=0.0005)


class BoltGraph:
    """The entities and relations of a Neo4j, or of another server that speaks Bolt.

    The entities are the nodes with one label; their names, and the types of the relationships
    between them, are those of the triples. It is read in transactions of its own; nothing is
    written and nothing cached, so every hop sees what is committed when it is made. All that wait
    for a hop share a query, except those of different tenants; graphs never share one, so requests
    with other credentials, databases or bookmarks are those of another ``BoltGraph``. Give it as
    ``Accelerator(graph=...)``, or several by ``namespace`` as ``KnowledgeEngine(graphs)``.

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
        impersonated_user: whose rights apply instead.
        bookmarks: what must have been written before a query reads, as ``neo4j.Bookmarks``; by
            default what the driver's ``execute_query`` has written.
        timeout_s: longest time of a query on the server; ``None`` leaves it to the server.
        label: the label of entities.
        name: the property with an entity's name.
        text: the property with what is told of an entity, if there is one.
        text_index: the full-text index for links by words, if there is one.
        vector_index: the vector index for links by vector, if there is one.
        max_names: names kept before requests that begin later get a new view with none.

    Raises:
        ConfigError: for an asynchronous driver, a bad time limit or a bad name.
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
    ) -> None:
        access = BoltAccess(database, auth, impersonated_user, bookmarks, timeout_s)
        self._reader = BoltReader(driver, access)
        self._schema = GraphSchema(label, name, text)
        self._indexes = {"text_index": text_index, "vector_index": vector_index}
        for option, index in self._indexes.items():
            _check_index(option, index)
        self._max_names = max_names
        self._versions = itertools.count()
        self._view: BoltView | None = self._new_view()

    @property
    def trips(self) -> int:
        """Return how many queries were sent so far."""
        return self._reader.trips

    def view(self) -> BoltView:
        """Return the view that requests which begin now share.

        Raises:
            ClosedError: after ``close``.
        """
        if self._view is None:
            raise ClosedError("the knowledge graph is closed", where="BoltGraph.view")
        if self._view.num_names > self._max_names:
            self._view = self._new_view()
        return self._view

    def as_engine(self) -> KnowledgeEngine:
        """Return an engine over this graph; it computes nothing on this machine."""
        from rag_accel.engines.knowledge.engine import KnowledgeEngine

        return KnowledgeEngine(self, max_threads=0, latency=_FIRST_GUESS)

    def close(self) -> None:
        """Forget the names; the driver stays open."""
        self._view = None

    def _new_view(self) -> BoltView:
        return BoltView(self._reader, self._schema, self._indexes, next(self._versions))


def _check_index(option: str, index: str | None) -> None:
    if index is not None and not (isinstance(index, str) and index):
        raise ConfigError("bad name of an index", where=option, found=repr(index), valid="a text")
