"""Programs of two logins of one server keep to their own; who may not impersonate is refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import neo4j
import pytest
from neo4j.exceptions import Neo4jError
from neo4j_graphrag.retrievers.base import Retriever
from neo4j_graphrag.types import RawSearchResult
from neo4j_server import BoltServer
from ng_kit import ARMS, fill, outcome, running, side_by_side

from rag_accel import Accelerator

pytestmark = pytest.mark.neo4j


@pytest.fixture
def other_login(neo4j_server: BoltServer, neo4j_driver: Any) -> Iterator[Any]:
    """Yield a driver of a user who is made for the test, on the filled server."""
    fill(neo4j_driver)
    name, password = "second", os.urandom(12).hex()
    neo4j_driver.execute_query(
        f"CREATE USER {name} SET PASSWORD $password CHANGE NOT REQUIRED",
        password=password,
        database_="system",
    )
    try:
        login = neo4j.basic_auth(name, password)
        with neo4j.GraphDatabase.driver(neo4j_server.uri, auth=login) as driver:
            yield driver
    finally:
        neo4j_driver.execute_query(f"DROP USER {name}", database_="system")


class WhoAsks(Retriever):
    """A retriever that finds the user of its login."""

    def get_search_results(self, query_text: str) -> RawSearchResult:
        text = "SHOW CURRENT USER YIELD user RETURN user + $text AS user"
        found = self.driver.execute_query(text, text=query_text)
        return RawSearchResult(records=found.records)


@pytest.mark.cross_product(keep=1)
@pytest.mark.parametrize("arm", ARMS)
def test_searches_of_two_logins_are_each_its_own(
    arm: str, neo4j_driver: Any, other_login: Any, accelerator: Accelerator
) -> None:
    plain = [WhoAsks(driver) for driver in (neo4j_driver, other_login)]
    expected = [[one.search(query_text="") for one in plain][at % 2] for at in range(16)]
    with (
        running(arm, plain[0], accelerator) as first,
        running(arm, plain[1], accelerator) as second,
    ):
        fast = (first, second)
        found = side_by_side(lambda at: fast[at % 2].search(query_text=""), list(range(16)))
    assert found == expected
    assert ["second" in str(one.items) for one in found] == [False, True] * 8


@pytest.mark.cross_product(keep=1)
@pytest.mark.parametrize("arm", ARMS)
def test_who_may_not_impersonate_is_refused_as_plainly(
    arm: str, other_login: Any, accelerator: Accelerator
) -> None:
    class AsAnother(Retriever):
        def get_search_results(self, query_text: str) -> RawSearchResult:
            found = self.driver.execute_query("RETURN 1 AS one", impersonated_user_=query_text)
            return RawSearchResult(records=found.records)

    plain = AsAnother(other_login)
    expected = outcome(lambda: plain.search("neo4j"))
    with running(arm, plain, accelerator) as fast:
        assert outcome(lambda: fast.search("neo4j")) == expected
    assert issubclass(expected[0], Neo4jError)
