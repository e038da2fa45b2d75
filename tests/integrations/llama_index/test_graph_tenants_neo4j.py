"""Tenants over one real Neo4j whose programs ask the same at once: each finds what is its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from idle_accelerators import soon_idle
from li_graph_programs import GraphLLM, Names, retrieve
from li_graph_stores import NEO4J_MARKS, opened, same_at_once, words
from llama_index.core.graph_stores.types import EntityNode, Relation
from llama_index.core.indices.property_graph import (
    CypherTemplateRetriever,
    PGRetriever,
    TextToCypherRetriever,
)
from llama_index.graph_stores.neo4j import Neo4jPropertyGraphStore
from neo4j.exceptions import ClientError
from neo4j_server import BoltServer

from llama_index_rag_accel import accelerate, activate
from rag_accel import Accelerator

pytest.importorskip("llama_index.graph_stores.neo4j")


AT_ONCE = 8

pytestmark = NEO4J_MARKS


def same_everywhere(programs: list[Any], accelerator: Accelerator) -> list[Any]:
    """Return what each program gives: the same accelerated, on a loop, in threads, activated."""
    plain = same_at_once(programs, accelerator, AT_ONCE)
    fast = [accelerate(one, accelerator=accelerator) for one in programs]
    with ThreadPoolExecutor(AT_ONCE * len(programs)) as pool:
        assert list(pool.map(retrieve, fast * AT_ONCE)) == plain * AT_ONCE
        with activate(accelerator):
            assert list(pool.map(retrieve, programs * AT_ONCE)) == plain * AT_ONCE
    assert soon_idle(accelerator)
    return plain


def asked_in_cypher(store: Any, query: str) -> PGRetriever:
    """Return a retriever whose model always writes this query."""
    return PGRetriever([TextToCypherRetriever(store, GraphLLM(cypher=query))])


def texts(found: list[Any]) -> list[str]:
    """Return the texts of what a retriever gives."""
    return [one[2]["text"] for one in found]


def of_words(store: Any, tenant: str) -> PGRetriever:
    """Return a retriever whose model names the tenant's entity."""
    return words(store, tenant)


def of_labels(store: Any, tenant: str) -> PGRetriever:
    """Return a retriever whose query names the tenant's label; the model gives the same names."""
    query = f"MATCH (e:`{tenant}`)-[r]->(t) WHERE e.at IN $names RETURN t.name AS name"
    return PGRetriever([CypherTemplateRetriever(store, Names, query, llm=GraphLLM())])


@pytest.mark.parametrize("make", [of_words, of_labels])
def test_tenants_with_graphs_of_their_own_in_one_database_find_their_own(
    neo4j_server: BoltServer,
    graph_store: Neo4jPropertyGraphStore,
    accelerator: Accelerator,
    make: Callable[[Any, str], PGRetriever],
) -> None:
    tenants = ("Left", "Right")
    for tenant in tenants:
        inner = EntityNode(name=tenant, label=tenant, properties={"at": "E1"})
        graph_store.upsert_nodes([inner, EntityNode(name=f"{tenant} only", label=tenant)])
        relation = Relation(label="to", source_id=tenant, target_id=f"{tenant} only")
        graph_store.upsert_relations([relation])
    with opened(neo4j_server) as other:
        stores = (graph_store, other)
        programs = [make(store, tenant) for store, tenant in zip(stores, tenants, strict=True)]
        plain = same_everywhere(programs, accelerator)
    for tenant, found in zip(tenants, plain, strict=True):
        (text,) = texts(found)
        assert f"{tenant} only" in text
        assert not any(one in text for one in tenants if one != tenant)


def test_stores_that_differ_in_a_setting_alone_each_keep_theirs(
    neo4j_server: BoltServer, graph_store: Neo4jPropertyGraphStore, accelerator: Accelerator
) -> None:
    # A store leaves out long lists unless it is told not to.
    query = "RETURN range(1, 200) AS long, 1 AS short"
    with opened(neo4j_server, sanitize_query_output=False) as whole:
        programs = [asked_in_cypher(store, query) for store in (graph_store, whole)]
        cut, kept = same_everywhere(programs, accelerator)
    assert "199, 200" not in texts(cut)[0]
    assert "199, 200" in texts(kept)[0]


def test_a_tenant_whose_database_is_unknown_fails_alone(
    neo4j_server: BoltServer, graph_store: Neo4jPropertyGraphStore, accelerator: Accelerator
) -> None:
    with opened(neo4j_server) as elsewhere:
        elsewhere._database = "nowhere"
        programs = [words(graph_store, "E1"), words(elsewhere, "E1")]
        given, failed = same_at_once(programs, accelerator)
    assert isinstance(given, list)
    assert failed[0] is ClientError
    assert "nowhere" in failed[1]


@contextmanager
def another_user(driver: Any) -> Iterator[dict[str, str]]:
    """Give the login of a user who exists meanwhile."""
    name, password = f"user{os.urandom(4).hex()}", os.urandom(12).hex()
    system = {"database_": "system"}
    driver.execute_query(
        f"CREATE USER {name} SET PASSWORD $password CHANGE NOT REQUIRED",
        {"password": password},
        **system,
    )
    try:
        yield {"username": name, "password": password}
    finally:
        driver.execute_query(f"DROP USER {name}", **system)


def test_users_of_one_server_who_ask_the_same_each_ask_as_themselves(
    neo4j_server: BoltServer,
    neo4j_driver: Any,
    graph_store: Neo4jPropertyGraphStore,
    accelerator: Accelerator,
) -> None:
    query = "SHOW CURRENT USER YIELD user"
    with another_user(neo4j_driver) as login, opened(neo4j_server, **login) as theirs:
        programs = [asked_in_cypher(store, query) for store in (graph_store, theirs)]
        plain = same_everywhere(programs, accelerator)
    for user, found in zip((neo4j_server.user, login["username"]), plain, strict=True):
        assert f"[{{'user': '{user}'}}]" in texts(found)[0]
