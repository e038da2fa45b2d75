"""The Neo4j server that tests share."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.neo4j
@pytest.mark.parametrize("turn", ["first", "second"])
def test_each_test_finds_the_database_empty(neo4j_driver: Any, turn: str) -> None:
    neo4j_driver.execute_query("CREATE CONSTRAINT FOR (n:City) REQUIRE n.name IS UNIQUE")
    neo4j_driver.execute_query("CREATE FULLTEXT INDEX words FOR (n:City) ON EACH [n.name]")
    neo4j_driver.execute_query(
        "CREATE (:City {name: $turn})-[:NEAR]->(:City {name: 'x'})", turn=turn
    )
    found = neo4j_driver.execute_query("MATCH (n)-->() RETURN n.name AS name").records
    assert [record["name"] for record in found] == [turn]


@pytest.mark.neo4j
def test_apoc_is_there_where_it_came_with_the_server(neo4j_driver: Any) -> None:
    neo4j_driver.execute_query("CREATE (:City {name: 'x'})")
    labels = neo4j_driver.execute_query("CALL apoc.meta.data() YIELD label RETURN label").records
    assert {record["label"] for record in labels} == {"City"}
