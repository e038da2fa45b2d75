"""Odd input and faults of property graph programs over a real Neo4j: each is as it is plainly."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

pytest.importorskip("llama_index.graph_stores.neo4j")

from li_graph_programs import (
    CYPHER,
    TEMPLATE,
    GraphLLM,
    GraphParts,
    Names,
    retriever,
)
from li_graph_stores import NEO4J_MARKS, opened, same, same_at_once, words
from llama_index.core.bridge.pydantic import BaseModel, ValidationError
from llama_index.core.graph_stores.types import EntityNode, Relation
from llama_index.core.indices.property_graph import (
    CypherTemplateRetriever,
    PGRetriever,
    TextToCypherRetriever,
)
from llama_index.graph_stores.neo4j import Neo4jPropertyGraphStore
from neo4j import GraphDatabase
from neo4j.exceptions import AuthError, ClientError, CypherSyntaxError, ServiceUnavailable
from neo4j_server import BoltServer

from rag_accel import Accelerator

#: of a driver that is to give up soon
IMPATIENT = {
    "connection_timeout": 0.2,
    "connection_acquisition_timeout": 0.2,
    "max_transaction_retry_time": 0,
}

pytestmark = NEO4J_MARKS


# Names and bounds --------------------------------------------------------------------------------

NAMES = ["Nobody", "", "O'Hara", 'a "b"', "a\nb", "a`b", "x'}) DETACH DELETE n //"]
BOUNDS: list[dict[str, int]] = [{}, {"path_depth": 0}, {"limit": 0}]


@pytest.mark.cross_product(keep=3)
@pytest.mark.parametrize("name", NAMES)
def test_any_name_and_bound_does_as_plainly(
    graph_store: Neo4jPropertyGraphStore, accelerator: Accelerator, name: str
) -> None:
    if name not in ("", "Nobody"):
        graph_store.upsert_nodes([EntityNode(name=name)])
        source = graph_store.get(properties={"name": name})[0].id
        relation = Relation(label="to", source_id=source, target_id="E1")
        graph_store.upsert_relations([relation])
        name = source
    before = graph_store.structured_query("MATCH (n) RETURN count(n) AS n")
    for options in BOUNDS:
        program = words(graph_store, name, output_parsing_fn=lambda text: [text], **options)
        same(program, accelerator)
    assert graph_store.structured_query("MATCH (n) RETURN count(n) AS n") == before


# Servers that do not serve -----------------------------------------------------------------------


@contextmanager
def refusing(server: BoltServer) -> Iterator[dict[str, Any]]:
    """Give the settings of a login that the server does not know, which it never locks out."""
    yield {"username": "nobody", "password": "wrong"}


@contextmanager
def silent(server: BoltServer) -> Iterator[dict[str, Any]]:
    """Give the settings of a port that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield {"url": f"bolt://127.0.0.1:{listener.getsockname()[1]}"}


@contextmanager
def unreachable(server: BoltServer) -> Iterator[dict[str, Any]]:
    """Give the settings of a port that nothing listens at."""
    yield {"url": "bolt://127.0.0.1:9"}


Fault = Callable[[BoltServer], AbstractContextManager[dict[str, Any]]]
FAULTS: dict[Fault, type[Exception]] = {
    refusing: AuthError,
    silent: ServiceUnavailable,
    unreachable: ServiceUnavailable,
}
every_fault = pytest.mark.parametrize(
    ("fault", "kind"), FAULTS.items(), ids=[one.__name__ for one in FAULTS]
)


@contextmanager
def turned_faulty(server: BoltServer, fault: Fault) -> Iterator[Neo4jPropertyGraphStore]:
    """Give a store whose driver meets a fault; it was made before, as making one asks the server.

    Plain and accelerated programs see one driver, so that errors name one address.
    """
    with opened(server) as store, fault(server) as settings:
        given = {"url": server.uri, "username": server.user, "password": server.password} | settings
        store.close()
        store._driver = GraphDatabase.driver(
            given["url"], auth=(given["username"], given["password"]), **IMPATIENT
        )
        yield store


@every_fault
def test_a_fault_of_the_server_is_the_driver_s_error_and_no_other_request_s(
    neo4j_server: BoltServer,
    graph_store: Neo4jPropertyGraphStore,
    accelerator: Accelerator,
    fault: Fault,
    kind: type[Exception],
) -> None:
    with turned_faulty(neo4j_server, fault) as faulty:
        programs = [words(faulty, "E1"), words(graph_store, "E1")]
        failed, given = same_at_once(programs, accelerator)
    assert failed[0] is kind
    assert isinstance(given, list)
    assert given


# Queries of models -------------------------------------------------------------------------------


def made(store: Any) -> int:
    """Return how many nodes a model's query has made."""
    return store.structured_query("MATCH (n:Made) RETURN count(n) AS made")[0]["made"]


def test_a_model_s_query_that_writes_does_so_once_a_request_as_plainly(
    graph_store: Neo4jPropertyGraphStore, accelerator: Accelerator
) -> None:
    llm = GraphLLM(cypher="CREATE (n:Made) RETURN 1 AS one")
    writer = retriever(GraphParts(graph_store, llm), "text to Cypher")
    assert isinstance(same(writer, accelerator), list)
    assert made(graph_store) == 3  # plain, accelerated, and on a loop
    same_at_once([writer, words(graph_store, "E1")], accelerator, times=8)
    assert made(graph_store) == 3 + 1 + 8


def test_a_model_s_query_that_a_validator_refuses_is_not_run(
    graph_store: Neo4jPropertyGraphStore, accelerator: Accelerator
) -> None:
    def read_only(query: str) -> str:
        if query.startswith("MATCH"):
            return query
        raise PermissionError(f"this query writes: {query}")

    writer, reader = (
        TextToCypherRetriever(graph_store, GraphLLM(cypher=query), cypher_validator=read_only)
        for query in ("CREATE (n:Made) RETURN n", CYPHER)
    )
    failed, given = same_at_once([PGRetriever([writer]), PGRetriever([reader])], accelerator)
    assert failed == (PermissionError, "this query writes: CREATE (n:Made) RETURN n")
    assert isinstance(given, list)
    assert made(graph_store) == 0


class Titles(BaseModel):
    """Parameters that the model does not give."""

    titles: list[str]


TEMPLATES: dict[str, tuple[type[BaseModel], str, type[Exception]]] = {
    "a parameter that the model does not give": (Titles, TEMPLATE, ValidationError),
    "a parameter that no one gives": (Names, TEMPLATE.replace("$names", "$other"), ClientError),
    "a parameter of another type": (Names, "RETURN sqrt($names) AS root", ClientError),
    "no Cypher": (Names, "MATCH (n RETURN n", CypherSyntaxError),
    "nothing": (Names, "", ClientError),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_that_does_not_fit_is_an_error_as_plainly(
    graph_store: Neo4jPropertyGraphStore, accelerator: Accelerator, name: str
) -> None:
    parameters, query, kind = TEMPLATES[name]
    wrong, right = (
        PGRetriever([CypherTemplateRetriever(graph_store, cls, cypher, llm=GraphLLM())])
        for cls, cypher in ((parameters, query), (Names, TEMPLATE))
    )
    failed, given = same_at_once([wrong, right], accelerator)
    assert issubclass(failed[0], kind), failed
    assert isinstance(given, list)
