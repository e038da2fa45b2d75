"""Programs over a real Neo4j: a small graph, its chains and its vector stores."""

from __future__ import annotations

from typing import Any

from graph_programs import QueryWriter, numbered
from langchain_neo4j import GraphCypherQAChain, Neo4jGraph, Neo4jVector
from lc_fakes import FakeEmbeddings
from neo4j_server import BoltServer

#: names that would change a query, were they put into one
ODD = ["it's", 'say "hi"', "two\nlines", "n}) DETACH DELETE n //", "`tick`", "$name"]

FILL = """
CREATE (ada:Person {name: 'Ada', born: date('1815-12-10'), seen: datetime('2020-01-02T03:04:05Z')}),
       (ben:Person {name: 'Ben', at: point({x: 1.5, y: 2.5}), odd: [1, 2.5, 3]}),
       (cy:Person {name: 'Cy', bytes: null, is_in: true}),
       (ada)-[:KNOWS {since: 1}]->(ben), (ben)-[:KNOWS {since: 2}]->(cy), (ada)-[:LIKES]->(ada)
WITH ada UNWIND $names AS name CREATE (ada)-[:KNOWS {since: 0}]->(:Person {name: name})
"""

WRITTEN = {
    "names?": "MATCH (p:Person) RETURN p.name AS name ORDER BY name",
    "fenced?": "```cypher\nMATCH (p:Person {name: 'Ada'}) RETURN p.born AS born\n```",
    "natives?": "MATCH (p:Person) RETURN p, p.born, p.seen, p.at, p.odd ORDER BY p.name LIMIT 4",
    "path?": "MATCH way = (:Person {name: 'Ada'})-[:KNOWS*2]->() RETURN way, nodes(way) AS all",
    "twice?": "UNWIND [1, 1, 2] AS x RETURN x",
    "nothing?": "MATCH (n:Nobody) RETURN n.name",
    "turned?": "MATCH (a:Person)<-[:KNOWS]-(b:Person) WHERE b.name = 'Cy' RETURN a.name",
    "invalid?": "MATCH (p:Person RETURN",
    "talk?": "I am sorry, I cannot answer that.",
    "no text?": "",
    "fails late?": "UNWIND [1, 0] AS x RETURN 1 / x",
    "": "RETURN 'nothing was asked' AS said",
}

#: queries that write: some fail and leave nothing, one cannot run in an explicit transaction
WRITES = {
    "make?": "CREATE (n:Made {at: timestamp()}) RETURN count(n) AS made",
    "make and fail?": "CREATE (:Made) WITH 1 AS one UNWIND [1, 0] AS x RETURN one / x",
    "make apart?": "UNWIND [1, 2] AS x CALL (x) { CREATE (:Made) } IN TRANSACTIONS RETURN count(*)",
    "make unlike?": "CREATE (:Person {name: 'Ada', name 'Ben'})",
}
MANY = {
    question: f"MATCH (p:Person) RETURN p.name AS name, {number} AS number ORDER BY name"
    for number, question in enumerate(numbered(16))
}

Counted = list[tuple[str, Any]]


class CountedGraph(Neo4jGraph):
    """Note each query that reaches the graph."""

    def __init__(self, **settings: Any) -> None:
        self.asked: Counted = []
        super().__init__(**settings)

    def query(self, query: str, *args: Any, **kwargs: Any) -> list[dict[str, Any]]:
        self.asked.append((query, (args, kwargs)))
        return super().query(query, *args, **kwargs)


def graph_at(server: BoltServer, kind: type[Neo4jGraph] = Neo4jGraph, **settings: Any) -> Any:
    """Return LangChain's graph of a server; the caller closes it."""
    login: dict[str, Any] = {
        "url": server.uri,
        "username": server.user,
        "password": server.password,
    }
    quiet: dict[str, Any] = {"driver_config": {"notifications_min_severity": "OFF"}}
    return kind(**login | quiet | settings)


def chain_over(graph: Any, meeting: Any = None, **settings: Any) -> GraphCypherQAChain:
    """Return a chain that has a model write Cypher and answer from what the graph returns."""
    model = QueryWriter(written=WRITTEN | WRITES | MANY, meeting=meeting)
    given: dict[str, Any] = {"allow_dangerous_requests": True, "return_intermediate_steps": True}
    return GraphCypherQAChain.from_llm(model, graph=graph, **given | settings)


TEXTS = ["a ferry to the island", "the ferry's captain", "an island's rock", "ferry ferry"]


def store_over(graph: Any, embeddings: Any = None, **settings: Any) -> Neo4jVector:
    """Return a filled vector store, whose indexes are there."""
    store = Neo4jVector.from_texts(
        TEXTS,
        embeddings or FakeEmbeddings(),
        metadatas=[{"number": number, "tenant": "ab"[number % 2]} for number in range(len(TEXTS))],
        graph=graph,
        **settings,
    )
    store.query("CALL db.awaitIndexes(60)")
    return store
