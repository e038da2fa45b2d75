"""A driver that answers what ``BoltGraph`` asks from a list of triples, and notes each query."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from neo4j.exceptions import CypherSyntaxError
from triples import Triple, edges_by_definition

from rag_accel.engines.knowledge.protocol import Expansion


@dataclass
class Sent:
    """One query: its text, its parameters, its time limit and the settings of its session."""

    text: str
    parameters: dict[str, Any]
    timeout_s: float | None
    settings: dict[str, Any]


@dataclass
class FakeRecord:
    """A record of a result."""

    row: list[Any]

    def values(self) -> list[Any]:
        """Return its values."""
        return self.row


class FakeDriver:
    """A driver over triples; entities are scored by words of their names, and by vectors.

    Args:
        triples: what the database holds.
        vectors: those of entities, by name.
        texts: what is told of entities, by name.
    """

    execute_query_bookmark_manager = object()

    def __init__(
        self,
        triples: Iterable[Triple] = (),
        vectors: dict[str, Sequence[float]] | None = None,
        texts: dict[str, str] | None = None,
    ) -> None:
        self.triples = list(triples)
        self.vectors = vectors or {}
        self.texts = texts or {}
        self.sent: list[Sent] = []
        self.failures: list[BaseException] = []
        #: what a query ends with that names an entity
        self.refused: dict[str, BaseException] = {}
        #: queries that read the edges of an entity, or look for it, wait for its event
        self.held: dict[str, threading.Event] = {}
        self.has_collect = True
        #: guards what threads of one engine count
        self.lock = threading.Lock()
        self.open_sessions = 0

    def session(self, **settings: Any) -> FakeSession:
        """Return a session; it counts as open until it is left."""
        return FakeSession(self, settings)

    def close(self) -> None:
        """Fail as a caller's driver must not be closed."""
        raise AssertionError("the driver is the caller's")

    def answer(self, parameters: dict[str, Any]) -> list[list[Any]]:
        """Return the rows of a query, known by its parameters."""
        for name in self._names_read(parameters):
            if name in self.held:
                assert self.held[name].wait(30), "nobody let the query go on"
            if name in self.refused:
                raise self.refused[name]
        if "leaving" in parameters or "coming" in parameters:
            return [
                self._edges(row, way, is_counted="limit" in parameters)
                for way, name in (("out", "leaving"), ("in", "coming"))
                for row in parameters.get(name, ())
            ]
        if "text_index" not in parameters:
            return [[name, self.texts[name]] for name in parameters["names"] if name in self.texts]
        return [
            *(
                ["names", 0, name, 0.0]
                for name in parameters.get("names", ())
                if name in self.known
            ),
            *(row for one in parameters.get("texts", ()) for row in self._by_words(one)),
            *(row for one in parameters.get("vectors", ()) for row in self._by_vector(one)),
        ]

    @property
    def known(self) -> list[str]:
        """Return all names in reverse order, as a server orders nothing."""
        return sorted({name for h, _, t in self.triples for name in (h, t)}, reverse=True)

    def _names_read(self, parameters: dict[str, Any]) -> list[str]:
        """Return the names that a query looks for, and those whose edges it reads."""
        return list(parameters.get("names", ())) + [
            row["name"]
            for way, name in (("out", "leaving"), ("in", "coming"))
            for row in parameters.get(name, ())
            if 0 < self._degree(row["name"], way) <= row.get("most", 2**62)
            or "limit" not in parameters
        ]

    def _degree(self, name: str, way: Any) -> int:
        every = Expansion(None, None, way, 2**31)  # type: ignore[arg-type]
        return len(edges_by_definition(self.triples, name, every))

    def _edges(self, row: dict[str, Any], way: Any, is_counted: bool) -> list[Any]:
        degree = self._degree(row["name"], way)
        if is_counted and degree > row["most"]:
            return [row["i"], [], degree]
        types = None if row["types"] is None else tuple(row["types"])
        asked = Expansion(None, types, way, row["limit"])  # type: ignore[arg-type]
        found = edges_by_definition(self.triples, row["name"], asked)
        # Chosen in order, but told in another: a server may compare texts otherwise.
        edges = [[relation, other] for relation, other, _ in reversed(found)]
        return [row["i"], edges, degree if is_counted else len(edges)]

    def _by_words(self, row: dict[str, Any]) -> list[list[Any]]:
        words = set(row["query"].split())
        scores = {name: len(words & set(name.lower().split())) for name in self.known}
        return [["texts", row["i"], name, float(n)] for name, n in scores.items() if n]

    def _by_vector(self, row: dict[str, Any]) -> list[list[Any]]:
        return [
            ["vectors", row["i"], name, sum(a * b for a, b in zip(row["query"], v, strict=True))]
            for name, v in self.vectors.items()
        ]


@dataclass
class FakeSession:
    """A session of a fake driver."""

    driver: FakeDriver
    settings: dict[str, Any] = field(default_factory=dict)

    def __enter__(self) -> FakeSession:
        with self.driver.lock:
            self.driver.open_sessions += 1
        return self

    def __exit__(self, *_: object) -> None:
        with self.driver.lock:
            self.driver.open_sessions -= 1

    def run(self, query: Any, parameters: dict[str, Any]) -> list[FakeRecord]:
        """Note a query and answer it, or fail as the driver was told."""
        self.driver.sent.append(Sent(query.text, parameters, query.timeout, self.settings))
        if self.driver.failures:
            raise self.driver.failures.pop(0)
        if "COLLECT" in query.text and not self.driver.has_collect:
            raise CypherSyntaxError("COLLECT is no function")
        return [FakeRecord(row) for row in self.driver.answer(parameters)]
