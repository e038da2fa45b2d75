"""A knowledge graph in a real Neo4j."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import neo4j
import numpy as np
import pytest
from neo4j.exceptions import AuthError, ClientError, ServiceUnavailable, SessionExpired
from neo4j_server import BoltServer
from relay import Relay
from triples import (
    ODD_NAMES,
    edges_by_definition,
    fill,
    named_edges,
    paths_by_definition,
    random_graph,
    walk,
)

from rag_accel.engine_api import ExpandBatch, LinkQuery
from rag_accel.engines.knowledge.bolt import BoltGraph
from rag_accel.engines.knowledge.bolt.reader import BoltAccess, BoltReader
from rag_accel.engines.knowledge.memory import MemoryGraph
from rag_accel.engines.knowledge.protocol import Expansion

pytestmark = pytest.mark.neo4j

ALL = ExpandBatch(None, limit=10_000)


@pytest.fixture
def indexed(neo4j_driver: Any) -> Any:
    """Return the driver of an empty database that knows entities by name."""
    run(neo4j_driver, "CREATE CONSTRAINT FOR (n:__Entity__) REQUIRE n.id IS UNIQUE")
    return neo4j_driver


@pytest.fixture
def relay(neo4j_server: BoltServer) -> Iterator[Relay]:
    """Yield a way to the server that can be cut."""
    host, _, port = neo4j_server.uri.rpartition("//")[2].partition(":")
    relay = Relay((host, int(port)))
    yield relay
    relay.cut()


def run(driver: Any, text: str, **parameters: Any) -> list[Any]:
    """Run a query and return its records."""
    return driver.execute_query(text, **parameters).records


def entities(graph: BoltGraph, query: LinkQuery) -> list[str]:
    """Return the names of the entities that a query means."""
    view = graph.view()
    return list(view.entity_names(view.find([query])[0]))


# Paths.


def test_paths_of_random_graphs_in_one_wave_are_those_in_memory(indexed: Any) -> None:
    graphs = [random_graph(seed, prefix=f"{seed} ") for seed in range(8)]
    triples = [triple for own in graphs for triple in own]
    fill(indexed, triples)
    seeds = [[name for name, _, _ in own[:3]] for own in graphs]
    in_memory, graph = MemoryGraph(triples).view(), BoltGraph(indexed)
    found = walk(graph.view(), seeds, ALL, 2)
    assert graph.trips == 3
    assert [list(paths) for paths in found] == [
        paths_by_definition(own, names, ALL, 2) for own, names in zip(graphs, seeds, strict=True)
    ]
    for hop in (
        ALL,
        ExpandBatch(None, relations=("likes", "`r`", "'"), direction="out", fan_out=2),
        ExpandBatch(None, direction="in", fan_out=3, limit=9),
    ):
        assert walk(graph.view(), seeds, hop, 2) == walk(in_memory, seeds, hop, 2)


def test_edges_are_chosen_in_the_order_of_code_points(indexed: Any) -> None:
    triples = [(one, "`r` '", other) for one in ODD_NAMES for other in ODD_NAMES]
    fill(indexed, triples)
    view = BoltGraph(indexed).view()
    (found,) = view.find([LinkQuery(len(ODD_NAMES), names=ODD_NAMES)])
    asked = Expansion(found, ("`r` '",), "both", 5)
    expected = [edges_by_definition(triples, name, asked) for name in ODD_NAMES]
    assert named_edges(view, [asked]) == [expected]


def test_a_hub_gives_its_first_edges(indexed: Any) -> None:
    run(
        indexed,
        "CREATE (hub:__Entity__ {id: 'hub'}) WITH hub UNWIND range(0, 19999) AS i "
        "CREATE (hub)-[:HAS]->(:__Entity__ {id: 'leaf ' + i})",
    )
    (paths,) = walk(BoltGraph(indexed).view(), [["hub"]], ExpandBatch(None, fan_out=8), 1)
    leaves = sorted(f"leaf {i}" for i in range(20_000))[:8]
    assert [path.text for path in paths] == [f"hub -> HAS -> {leaf}" for leaf in leaves]


def test_only_named_nodes_with_the_label_are_entities(neo4j_driver: Any) -> None:
    run(
        neo4j_driver,
        "CREATE (a:`My ``Thing` {`the name`: 'a'}), (b:`My ``Thing` {`the name`: 'b'}), "
        "(:`My ``Thing` {`the name`: 'a'})-[:R]->(b), (a)-[:R]->(:Other {`the name`: 'c'}), "
        "(a)-[:R]->(:`My ``Thing` {`the name`: 5}), (a)-[:R]->(:`My ``Thing`)",
    )
    graph = BoltGraph(neo4j_driver, label="My `Thing", name="the name")
    (paths,) = walk(graph.view(), [["a", "c"]], ALL, 2)
    assert [path.text for path in paths] == ["a -> R -> b"]


def test_an_edit_is_seen_by_the_next_request(indexed: Any) -> None:
    fill(indexed, [("a", "r", "b")])
    graph = BoltGraph(indexed)
    walk(graph.view(), [["a"]], ALL, 1)
    run(indexed, "MATCH (:__Entity__ {id: 'a'})-[r]->() DELETE r")
    assert walk(graph.view(), [["a"]], ALL, 1) == [()]


def test_texts_of_entities_are_read_from_their_property(indexed: Any) -> None:
    run(
        indexed, "CREATE (:__Entity__ {id: 'a', about: 'first'}), (:__Entity__ {id: 'b', about: 5})"
    )
    view = BoltGraph(indexed, text="about").view()
    (found,) = view.find([LinkQuery(2, names=("b", "a"))])
    assert view.entity_texts(found) == ["", "first"]


# Links.


@pytest.fixture
def searched(indexed: Any) -> BoltGraph:
    """Return a graph whose entities have a full-text index and a vector index."""
    rows = [["red car", [1.0, 0.0]], ["blue car", [0.0, 1.0]], ["red AND (blue)", [0.6, 0.8]]]
    run(indexed, "UNWIND $rows AS row CREATE (:__Entity__ {id: row[0], v: row[1]})", rows=rows)
    run(indexed, "CREATE FULLTEXT INDEX words FOR (n:__Entity__|Other) ON EACH [n.id]")
    run(
        indexed,
        "CREATE VECTOR INDEX near FOR (n:__Entity__) ON n.v OPTIONS {indexConfig: "
        "{`vector.dimensions`: 2, `vector.similarity_function`: 'cosine'}}",
    )
    run(indexed, "CREATE (:Other {id: 'no entity blue'})")
    run(indexed, "CALL db.awaitIndexes(60)")
    return BoltGraph(indexed, text_index="words", vector_index="near")


def test_words_are_looked_up_and_operators_are_none(searched: BoltGraph) -> None:
    for text in ("blue", "BLUE) OR *:*", 'blue"', "id:blue~2^", "blue AND NOT"):
        found = entities(searched, LinkQuery(9, text=text))
        assert sorted(found) == ["blue car", "red AND (blue)"]


def test_the_nearest_vectors_come_first(searched: BoltGraph) -> None:
    query = LinkQuery(2, vector=np.asarray([0.1, 1.0], np.float32))
    assert entities(searched, query) == ["blue car", "red AND (blue)"]
    with pytest.raises(ClientError, match="dimensions"):
        entities(searched, LinkQuery(1, vector=[1.0, 0.0, 0.0]))


def test_links_of_all_kinds_share_a_round_trip(searched: BoltGraph) -> None:
    view = searched.view()
    asked = [
        LinkQuery(1, names=("red car",)),
        LinkQuery(1, text="car blue"),
        LinkQuery(1, vector=[1.0, 0.0]),
    ]
    found = [view.entity_names(ids) for ids in view.find(asked)]
    assert (found, searched.trips) == ([["red car"], ["blue car"], ["red car"]], 1)


@pytest.mark.parametrize(
    "query", [LinkQuery(1, text="car"), LinkQuery(1, vector=[1.0, 0.0])], ids=["text", "vector"]
)
def test_a_missing_index_is_named_by_the_server(indexed: Any, query: LinkQuery) -> None:
    graph = BoltGraph(indexed, text_index="gone", vector_index="gone")
    with pytest.raises(ClientError, match="gone"):
        entities(graph, query)


# What is the caller's stays so, and what fails says why.


def test_a_callers_open_transaction_stays_his(indexed: Any) -> None:
    fill(indexed, [("a", "r", "b")])
    with indexed.session() as session, session.begin_transaction() as transaction:
        transaction.run("CREATE (:__Entity__ {id: 'new'})").consume()
        graph = BoltGraph(indexed)
        assert entities(graph, LinkQuery(2, names=("a", "new"))) == ["a"]
        transaction.commit()
    assert entities(graph, LinkQuery(2, names=("a", "new"))) == ["a", "new"]


def test_queries_cannot_write(neo4j_driver: Any) -> None:
    with pytest.raises(ClientError, match="read access mode"):
        BoltReader(neo4j_driver, BoltAccess()).rows("CREATE (:City)", {})


def test_a_slow_query_ends_at_its_time_limit(neo4j_driver: Any) -> None:
    reader = BoltReader(neo4j_driver, BoltAccess(timeout_s=0.5))
    with pytest.raises(neo4j.exceptions.Neo4jError) as raised:
        reader.rows("UNWIND range(1, 10000000000) AS i RETURN count(i)", {})
    assert "TransactionTimedOut" in raised.value.code


def test_a_refused_login_is_the_drivers_error_and_shows_no_password(neo4j_driver: Any) -> None:
    graph = BoltGraph(neo4j_driver, auth=neo4j.basic_auth("stranger", "hidden word"))
    with pytest.raises(AuthError) as raised:
        entities(graph, LinkQuery(1, names=("a",)))
    assert "hidden" not in f"{raised.value} {raised.value.__notes__}"


def test_an_unknown_database_is_named_by_the_server(neo4j_driver: Any) -> None:
    with pytest.raises(ClientError, match="nowhere"):
        entities(BoltGraph(neo4j_driver, database="nowhere"), LinkQuery(1, names=("a",)))


def test_a_server_that_is_gone_midway_ends_with_the_drivers_error(
    indexed: Any, neo4j_server: BoltServer, relay: Relay
) -> None:
    fill(indexed, [("a", "r", "b")])
    login = neo4j.basic_auth(neo4j_server.user, neo4j_server.password)
    with neo4j.GraphDatabase.driver(relay.uri, auth=login) as driver:
        view = BoltGraph(driver).view()
        found = view.find([LinkQuery(1, names=("a",))])[0]
        relay.cut()
        with pytest.raises((ServiceUnavailable, SessionExpired)):
            view.expand([Expansion(found)])


def test_a_closed_driver_is_the_drivers_error(neo4j_server: BoltServer) -> None:
    driver = neo4j_server.driver()
    driver.close()
    with pytest.raises(Exception, match="closed"):
        entities(BoltGraph(driver), LinkQuery(1, names=("a",)))
