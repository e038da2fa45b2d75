"""The ArcadeDB server that speaks Bolt."""

from __future__ import annotations

from typing import Any

import pytest
from arcadedb_server import DATABASE


@pytest.mark.processes
@pytest.mark.parametrize("turn", ["first", "second"])
def test_each_test_finds_the_database_empty(arcadedb_driver: Any, turn: str) -> None:
    def run(text: str) -> list[Any]:
        return arcadedb_driver.execute_query(text, turn=turn, database_=DATABASE).records

    run("CREATE (:City {name: $turn})-[:NEAR]->(:City {name: 'x'})")
    assert [record["name"] for record in run("MATCH (n)-->() RETURN n.name AS name")] == [turn]
