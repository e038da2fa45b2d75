"""A view of a graph in a database: its links, its edges, and names by id."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rag_accel.engine_api import LinkQuery
from rag_accel.engines.knowledge.bolt import statements
from rag_accel.engines.knowledge.bolt.reader import BoltReader, is_down
from rag_accel.engines.knowledge.bolt.statements import GraphSchema
from rag_accel.engines.knowledge.protocol import Edges, Expansion, Ids, as_ids, no_edges
from rag_accel.errors import GraphLinkError

#: An entity of no more edges is asked for together with others, however many there are.
LEAST_SHARED = 256
#: above what any entity has
_ALL = 2**62
#: what every server takes as the length of a list
_MOST_EDGES = 2**31 - 1
# An entity, the relations to follow, and whether its edges leave it.
_Question = tuple[int, tuple[str, ...] | None, bool]
_Edge = tuple[int, int]


@dataclass(slots=True)
class _Bounds:
    """Bounds of a question: the edges to return, and the most that the server may choose from."""

    limit: int = 0
    most: int = 0


class SharedNames:
    """Names of a database and their ids, which count from 0 in the order names were first met.

    Any thread may ask for an id: a name keeps the one that it got first, and no two share one.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._ids: dict[str, int] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._names)

    def id(self, name: str) -> int:
        """Return the id of a name, a new one for a new name."""
        found = self._ids.get(name)
        if found is not None:
            return found
        with self._lock:
            found = self._ids.get(name)
            if found is None:
                # The name first: whoever finds the id, without the lock, finds its name too.
                found = len(self._names)
                self._names.append(name)
                self._ids[name] = found
            return found

    def names(self, ids: Ids) -> list[str]:
        return [self._names[place] for place in ids.tolist()]


class BoltView:
    """A graph in a database as each query finds it, and the ids of the names met so far.

    Thread-safe; each call is a query of its own.

    Args:
        reader: sends the queries.
        schema: which nodes are entities.
        indexes: the names of ``text_index`` and ``vector_index``.
        version: differs from that of the graph's other views.
        shared_edges: most relationships that ``expand_small`` lets the server read for a request,
            where it asks for few entities; of each it may always read ``LEAST_SHARED``.
    """

    def __init__(
        self,
        reader: BoltReader,
        schema: GraphSchema,
        indexes: Mapping[str, str | None],
        version: int,
        shared_edges: int,
    ) -> None:
        self._reader = reader
        self._schema = schema
        self._indexes = indexes
        self.version = version
        self._shared_edges = shared_edges
        self._entities = SharedNames()
        self._relations = SharedNames()
        #: of entities with more than ``LEAST_SHARED`` edges one way, by entity and way
        self._degrees: dict[tuple[int, bool], int] = {}
        self._is_old = False

    @property
    def num_names(self) -> int:
        """Return how many names have ids."""
        return len(self._entities) + len(self._relations)

    def find(self, queries: Sequence[LinkQuery], time_s: float | None = None) -> Sequence[Ids]:
        """Return the entities each query means, best first; one round trip for all.

        By words and by vector the order is that of the index's scores, then of names; which of
        equally good ones are the first ``k`` is the server's choice.

        Raises:
            GraphLinkError: for a search by words or by vector without such an index.
        """
        parameters = self._sought(queries)
        if not parameters:
            return [as_ids([]) for _ in queries]
        statement = statements.link(self._schema, list(parameters))
        found = self._reader.rows(statement, {**parameters, **self._indexes}, time_s)
        known = {name for kind, _, name, _ in found if kind == "names"}
        best: dict[int, list[tuple[float, str]]] = {}
        for kind, place, name, score in found:
            if kind != "names":
                best.setdefault(place, []).append((-score, name))
        return [
            self._entity_ids(
                (name for name in query.names if name in known)
                if query.names is not None
                else (name for _, name in sorted(best.get(place, ()))),
                query.k,
            )
            for place, query in enumerate(queries)
        ]

    def is_down(self, error: BaseException) -> bool:
        """Tell whether the server is out of reach, or refuses the login, for every request."""
        return is_down(error)

    def _sought(self, queries: Sequence[LinkQuery]) -> dict[str, list[Any]]:
        """Return the parameters of a search, without those that are empty."""
        names: dict[str, None] = {}
        rows: dict[str, list[Any]] = {"texts": [], "vectors": []}
        for place, query in enumerate(queries):
            if query.k <= 0:
                continue
            if query.names is not None:
                names.update(dict.fromkeys(filter(_is_encodable, query.names)))
                continue
            kind = "texts" if query.text is not None else "vectors"
            self._require_index(f"{kind[:-1]}_index")
            sought = (
                statements.lucene_words(query.text)
                if query.text is not None
                else np.asarray(query.vector, np.float64).tolist()
            )
            if sought:
                rows[kind].append({"i": place, "k": query.k, "query": sought})
        given = {"names": list(names), **rows}
        return {kind: values for kind, values in given.items() if values}

    def _require_index(self, option: str) -> None:
        if self._indexes[option] is None:
            raise GraphLinkError(
                "a graph in a database is searched by an index that it does not name",
                where="BoltView.find",
                valid=f"a BoltGraph made with {option}",
                hint=f"create the index in the database and pass {option}, or link by names",
            )

    def _entity_ids(self, names: Iterable[str], k: int) -> Ids:
        first = itertools.islice(dict.fromkeys(names), max(k, 0))
        return as_ids([self._entities.id(name) for name in first])

    def expand(
        self, expansions: Sequence[Expansion], time_s: float | None = None
    ) -> Sequence[Edges]:
        """Return the edges of each expansion; one round trip for all, and none for no entity."""
        answers = self._answers(_bounds(expansions, [_ALL] * len(expansions)), time_s)
        return [_grouped(expansion, answers) for expansion in expansions]

    def expand_small(
        self, expansions: Sequence[Expansion], time_s: float | None = None
    ) -> Sequence[Edges | None]:
        """Return the edges of each expansion, ``None`` where an entity has too many of them.

        One round trip for all. The server counts before it reads, so that none waits for the edges
        of another's hub. A Neo4j before 5.6 reads all of them, and what it has read is returned.
        """
        bounds = _bounds(expansions, [self._most(expansion) for expansion in expansions])
        answers = self._answers(bounds, time_s)
        return [
            None
            if any(answers.get(question, ()) is None for question in _questions(expansion))
            else _grouped(expansion, answers)
            for expansion in expansions
        ]

    def is_large(self, expansion: Expansion) -> bool:
        """Tell whether one of the entities had too many edges when it was last read."""
        if not self._degrees:
            return False
        most = self._most(expansion)
        return any(
            self._degrees.get((entity, forward), 0) > most
            for entity, _, forward in _questions(expansion)
        )

    def _most(self, expansion: Expansion) -> int:
        """Return how many edges an entity of an expansion may have to be asked for with others."""
        num_questions = len(np.unique(expansion.entities)) * len(_ways(expansion))
        return max(LEAST_SHARED, self._shared_edges // max(num_questions, 1))

    def _answers(
        self, bounds: dict[_Question, _Bounds], time_s: float | None
    ) -> dict[_Question, list[_Edge] | None]:
        """Return the edges of each question, in order; ``None`` where there are too many."""
        if not bounds:
            return {}
        questions = list(bounds)
        answers: dict[_Question, list[_Edge] | None] = {}
        for place, edges, degree in self._read_edges(self._rows(bounds), time_s):
            question = entity, _, forward = questions[place]
            if degree > LEAST_SHARED:
                self._degrees[entity, forward] = degree
            else:
                self._degrees.pop((entity, forward), None)
            # An old server has read them already.
            if degree > bounds[question].most and not edges:
                answers[question] = None
                continue
            answers[question] = [
                (self._relations.id(relation), self._entities.id(other))
                # Python compares texts by code points, whatever the server does.
                for relation, other in sorted(map(tuple, edges))
            ]
        return answers

    def _rows(self, bounds: dict[_Question, _Bounds]) -> dict[str, list[dict[str, Any]]]:
        """Return the parameters of an expansion, without those that are empty."""
        rows: dict[str, list[dict[str, Any]]] = {"leaving": [], "coming": []}
        for place, ((entity, relations, forward), bound) in enumerate(bounds.items()):
            row = {
                "i": place,
                "name": self._entities.names(as_ids([entity]))[0],
                "types": None if relations is None else list(relations),
                "limit": min(bound.limit, _MOST_EDGES),
                "most": bound.most,
            }
            rows["leaving" if forward else "coming"].append(row)
        return {name: given for name, given in rows.items() if given}

    def _read_edges(
        self, rows: dict[str, list[dict[str, Any]]], time_s: float | None
    ) -> list[list[Any]]:
        from neo4j.exceptions import CypherSyntaxError

        ways = {"leaving": "leaving" in rows, "coming": "coming" in rows}
        if not self._is_old:
            limit = max(row["limit"] for given in rows.values() for row in given)
            statement = statements.expansion(self._schema, **ways)
            try:
                return self._reader.rows(statement, {**rows, "limit": limit}, time_s)
            except CypherSyntaxError:
                self._is_old = True
        statement = statements.expansion_for_old_servers(self._schema, **ways)
        return self._reader.rows(statement, rows, time_s)

    def entity_names(self, ids: Ids) -> Sequence[str]:
        return self._entities.names(ids)

    def relation_names(self, ids: Ids) -> Sequence[str]:
        return self._relations.names(ids)

    def entity_texts(self, ids: Ids) -> Sequence[str]:
        names = self._entities.names(ids)
        if self._schema.text is None or not names:
            return [""] * len(names)
        parameters = {"names": list(dict.fromkeys(names))}
        texts = dict(self._reader.rows(statements.texts(self._schema), parameters))
        return [texts.get(name, "") for name in names]


def _questions(expansion: Expansion) -> Iterable[_Question]:
    if expansion.fan_out <= 0 or expansion.relations == ():
        return
    for entity in np.unique(expansion.entities).tolist():
        for forward in _ways(expansion):
            yield entity, expansion.relations, forward


def _bounds(expansions: Sequence[Expansion], most: Sequence[int]) -> dict[_Question, _Bounds]:
    """Return each question once, with the widest bounds of those that ask it."""
    bounds: dict[_Question, _Bounds] = {}
    for expansion, own in zip(expansions, most, strict=True):
        for question in _questions(expansion):
            bound = bounds.setdefault(question, _Bounds())
            bound.limit = max(bound.limit, expansion.fan_out)
            bound.most = max(bound.most, own)
    return bounds


def _ways(expansion: Expansion) -> tuple[bool, ...]:
    return {"out": (True,), "in": (False,), "both": (True, False)}[expansion.direction]


def _grouped(expansion: Expansion, answers: Mapping[_Question, list[_Edge] | None]) -> Edges:
    """Return one expansion's edges, each direction cut to its own bound."""
    if not answers:
        return no_edges(len(expansion.entities))
    offsets, edges, forwards = [0], list[_Edge](), list[bool]()
    for entity in expansion.entities.tolist():
        for forward in _ways(expansion):
            found = (answers.get((entity, expansion.relations, forward)) or [])[: expansion.fan_out]
            edges += found
            forwards += [forward] * len(found)
        offsets.append(len(edges))
    table = np.asarray(edges, np.int64).reshape(-1, 2)
    return Edges(as_ids(offsets), table[:, 0], table[:, 1], np.asarray(forwards, np.bool_))


def _is_encodable(name: str) -> bool:
    """Tell whether a name can be sent; half a surrogate pair cannot, and no entity has it."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
