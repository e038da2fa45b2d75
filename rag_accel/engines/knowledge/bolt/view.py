"""What one request sees of a graph in a database: its links, its edges, and names by id."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rag_accel.engine_api import LinkQuery
from rag_accel.engines.knowledge.bolt import statements
from rag_accel.engines.knowledge.bolt.reader import BoltReader, is_down
from rag_accel.engines.knowledge.bolt.statements import GraphSchema
from rag_accel.engines.knowledge.protocol import Edges, Expansion, Ids, as_ids, no_edges
from rag_accel.errors import GraphLinkError

# An entity, the relations to follow, and whether its edges leave it.
_Question = tuple[int, tuple[str, ...] | None, bool]
_Edge = tuple[int, int]


class NameTable:
    """Names and their ids, which count from 0 in the order in which names were first met."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._ids: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._names)

    def id(self, name: str) -> int:
        """Return the id of a name, a new one for a new name."""
        found = self._ids.setdefault(name, len(self._names))
        if found == len(self._names):
            self._names.append(name)
        return found

    def names(self, ids: Ids) -> list[str]:
        """Return the names of ids."""
        return [self._names[one] for one in ids.tolist()]


class BoltView:
    """A graph in a database as it is when it is read, and the ids of the names met so far.

    Args:
        reader: sends the queries.
        schema: which nodes are entities.
        indexes: the names of ``text_index`` and ``vector_index``.
        version: differs from that of the graph's other views.
    """

    def __init__(
        self,
        reader: BoltReader,
        schema: GraphSchema,
        indexes: Mapping[str, str | None],
        version: int,
    ) -> None:
        self._reader = reader
        self._schema = schema
        self._indexes = indexes
        self._version = version
        self._entities = NameTable()
        self._relations = NameTable()

    @property
    def version(self) -> int:
        """Return the number of this view."""
        return self._version

    @property
    def num_names(self) -> int:
        """Return how many names have ids."""
        return len(self._entities) + len(self._relations)

    def find(self, asked: Sequence[LinkQuery]) -> Sequence[Ids]:
        """Return the entities each query means, best first; one round trip for all.

        By words and by vector the order is that of the index's scores, then of names; which of
        equally good ones are the first ``k`` is the server's choice.

        Raises:
            GraphLinkError: for a search by words or by vector without such an index.
        """
        parameters = self._sought(asked)
        if not parameters:
            return [as_ids([]) for _ in asked]
        statement = statements.link(self._schema, list(parameters))
        found = self._reader.rows(statement, {**parameters, **self._indexes})
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
            for place, query in enumerate(asked)
        ]

    def is_down(self, error: Exception) -> bool:
        """Tell whether the server is out of reach, or refuses the login, for every request."""
        return is_down(error)

    def _sought(self, asked: Sequence[LinkQuery]) -> dict[str, list[Any]]:
        """Return the parameters of a search, without those that are empty."""
        names: dict[str, None] = {}
        rows: dict[str, list[Any]] = {"texts": [], "vectors": []}
        for place, query in enumerate(asked):
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

    def expand(self, asked: Sequence[Expansion]) -> Sequence[Edges]:
        """Return the edges of each expansion; one round trip for all, and none for no entity."""
        limits: dict[_Question, int] = {}
        for expansion in asked:
            for question in _questions(expansion):
                limits[question] = max(limits.get(question, 0), expansion.fan_out)
        answers = self._answers(limits)
        return [_grouped(expansion, answers) for expansion in asked]

    def _answers(self, limits: dict[_Question, int]) -> dict[_Question, list[_Edge]]:
        """Return the edges of each question, in order."""
        if not limits:
            return {}
        questions = list(limits)
        rows: dict[str, list[dict[str, Any]]] = {"leaving": [], "coming": []}
        for place, (entity, relations, forward) in enumerate(questions):
            row = {
                "i": place,
                "name": self._entities.names(as_ids([entity]))[0],
                "types": None if relations is None else list(relations),
                "limit": limits[questions[place]],
            }
            rows["leaving" if forward else "coming"].append(row)
        statement = statements.expansion(
            self._schema, leaving=bool(rows["leaving"]), coming=bool(rows["coming"])
        )
        parameters = {name: given for name, given in rows.items() if given}
        return {
            questions[place]: [
                (self._relations.id(relation), self._entities.id(other))
                # Python compares texts by code points, whatever the server does.
                for relation, other in sorted(map(tuple, edges))
            ]
            for place, edges in self._reader.rows(statement, parameters)
        }

    def entity_names(self, ids: Ids) -> Sequence[str]:
        """Return the names of entities."""
        return self._entities.names(ids)

    def relation_names(self, ids: Ids) -> Sequence[str]:
        """Return the names of relations."""
        return self._relations.names(ids)

    def entity_texts(self, ids: Ids) -> Sequence[str]:
        """Return what is told of entities; one round trip, and none without such a property."""
        names = self._entities.names(ids)
        if self._schema.text is None or not names:
            return [""] * len(names)
        asked = {"names": list(dict.fromkeys(names))}
        told = dict(self._reader.rows(statements.texts(self._schema), asked))
        return [told.get(name, "") for name in names]


def _questions(expansion: Expansion) -> Iterable[_Question]:
    if expansion.fan_out <= 0 or expansion.relations == ():
        return
    for entity in np.unique(expansion.entities).tolist():
        for forward in _ways(expansion):
            yield entity, expansion.relations, forward


def _ways(expansion: Expansion) -> tuple[bool, ...]:
    return {"out": (True,), "in": (False,), "both": (True, False)}[expansion.direction]


def _grouped(expansion: Expansion, answers: dict[_Question, list[_Edge]]) -> Edges:
    """Return one expansion's edges, each direction cut to its own bound."""
    if not answers:
        return no_edges(len(expansion.entities))
    offsets, edges, forwards = [0], list[_Edge](), list[bool]()
    for entity in expansion.entities.tolist():
        for forward in _ways(expansion):
            found = answers.get((entity, expansion.relations, forward), [])[: expansion.fan_out]
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
