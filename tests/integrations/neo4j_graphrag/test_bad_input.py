"""What goes wrong goes wrong as it does plainly: the same errors, and the same effects once."""

from __future__ import annotations

from typing import Any

import neo4j
import pytest
from neo4j.exceptions import AuthError, ClientError
from neo4j_graphrag.exceptions import Text2CypherRetrievalError
from neo4j_graphrag.retrievers import Text2CypherRetriever, VectorRetriever
from neo4j_graphrag.retrievers.base import Retriever
from neo4j_graphrag.types import RawSearchResult
from neo4j_server import BoltServer
from ng_kit import (
    ARMS,
    TEXTS,
    GraphPrograms,
    HashEmbedder,
    ScriptedModel,
    fill,
    outcome,
    running,
    side_by_side,
    vector_of,
)

from neo4j_graphrag_rag_accel import accelerate
from rag_accel import Accelerator

pytestmark = pytest.mark.neo4j

ODD = ('Bob\'s "`Fact`"', "two\nlines", "x {n: 1}) DETACH DELETE (n", "é\u2028")


def count(driver: Any, label: str = "") -> int:
    """Return how many nodes there are."""
    return driver.execute_query(f"MATCH (n{label}) RETURN count(n) AS n").records[0]["n"]


def test_a_refused_login_is_the_drivers_error_and_shows_no_password(
    neo4j_driver: Any, neo4j_server: BoltServer, accelerator: Accelerator
) -> None:
    fill(neo4j_driver)
    plain = GraphPrograms(neo4j_driver).vector()
    login = neo4j.basic_auth("stranger", "hidden word")
    with neo4j.GraphDatabase.driver(neo4j_server.uri, auth=login) as driver:
        plain.driver = driver
        expected = outcome(lambda: plain.search(query_text="bridge"))
        fast = accelerate(plain, accelerator=accelerator)
        with pytest.raises(AuthError) as raised:
            fast.search(query_text="bridge")
    assert (type(raised.value), str(raised.value)) == expected
    assert "hidden" not in f"{raised.value} {getattr(raised.value, '__notes__', '')}"


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("kind", ["vector", "hybrid"])
def test_an_index_that_was_dropped_is_named_by_the_server(
    kind: str, arm: str, programs: GraphPrograms, accelerator: Accelerator
) -> None:
    plain = programs.retriever(kind)
    programs.driver.execute_query("DROP INDEX facts")
    expected = outcome(lambda: plain.search(query_text="bridge"))
    with running(arm, plain, accelerator) as fast:
        assert outcome(lambda: fast.search(query_text="bridge")) == expected
    assert expected[0] is ClientError
    assert "facts" in expected[1]


@pytest.mark.cross_product(keep=4)
@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize(
    "cypher", ["MATCH (n", "", "no Cypher at all", "MATCH (n) RETURN nothing", "RETURN $missing"]
)
def test_invalid_cypher_of_a_model_is_refused_as_plainly(
    cypher: str, arm: str, programs: GraphPrograms, accelerator: Accelerator
) -> None:
    programs.cypher = cypher
    plain = programs.text2cypher()
    expected = outcome(lambda: plain.search(query_text="bridge"))
    with running(arm, plain, accelerator) as fast:
        assert outcome(lambda: fast.search(query_text="bridge")) == expected
    assert issubclass(expected[0], Exception)
    assert len(plain.llm.asked) == 2  # once each


@pytest.mark.cross_product(keep=4)
@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize(
    "cypher",
    [
        "CREATE (n:Fact) RETURN n",
        "MATCH (n) DETACH DELETE n",
        "```cypher\nMATCH (n) SET n.text = 'x'\n```",
        "CREATE INDEX other FOR (n:Fact) ON n.text",
    ],
)
def test_cypher_of_a_model_that_writes_changes_nothing(
    cypher: str, arm: str, programs: GraphPrograms, accelerator: Accelerator
) -> None:
    programs.cypher = cypher
    plain = programs.text2cypher()
    with running(arm, plain, accelerator) as fast, pytest.raises(Text2CypherRetrievalError):
        fast.search(query_text="bridge")
    found = programs.driver.execute_query("MATCH (n) RETURN n.text AS text ORDER BY n.at").records
    assert tuple(record["text"] for record in found) == TEXTS
    assert len(plain.llm.asked) == 1


def test_a_query_of_the_programs_own_that_writes_does_so_once_a_search(
    neo4j_driver: Any, accelerator: Accelerator
) -> None:
    class Logged(Retriever):
        def get_search_results(self, query_text: str) -> RawSearchResult:
            text = "CREATE (n:Asked {text: $text}) RETURN n.text AS text"
            return RawSearchResult(records=self.driver.execute_query(text, text=query_text).records)

    fast = accelerate(Logged(neo4j_driver), accelerator=accelerator)
    side_by_side(lambda text: fast.search(query_text=text), [str(at) for at in range(16)])
    assert count(neo4j_driver, ":Asked") == 16


@pytest.mark.parametrize("name", ODD)
def test_names_with_quotes_newlines_or_cypher_stay_names(
    name: str, neo4j_driver: Any, accelerator: Accelerator
) -> None:
    label = f"`{name.replace('`', '``')}`"
    fill(neo4j_driver, label, "facts")
    neo4j_driver.execute_query("DROP INDEX facts")
    neo4j_driver.execute_query(
        f"CREATE VECTOR INDEX {label} FOR (n:{label}) ON n.v OPTIONS {{indexConfig: "
        "{`vector.dimensions`: 8, `vector.similarity_function`: 'cosine'}}"
    )
    neo4j_driver.execute_query("CALL db.awaitIndexes(60)")
    plain = VectorRetriever(neo4j_driver, name, HashEmbedder(), ["text"])
    fast = accelerate(plain, accelerator=accelerator)
    found = fast.search(query_text=name)
    assert found == plain.search(query_text=name)
    assert len(found.items) == 5
    assert count(neo4j_driver) == len(TEXTS)


def test_two_tenants_get_their_own(neo4j_driver: Any, accelerator: Accelerator) -> None:
    for tenant in ("One", "Two"):
        fill(neo4j_driver, tenant, tenant.lower())
        neo4j_driver.execute_query(f"MATCH (n:{tenant}) SET n.text = '{tenant}: ' + n.text")

    class Other(HashEmbedder):
        def embed_query(self, text: str) -> list[float]:
            return vector_of(f"another {text}")

    def model(name: str) -> ScriptedModel:
        return ScriptedModel(lambda text: f"{name} {text}")

    asked = [
        GraphPrograms(neo4j_driver, embedder(), index=name.lower(), model=model(name)).rag("vector")
        for name, embedder in (("One", HashEmbedder), ("Two", Other))
    ]
    fast = [accelerate(one, accelerator=accelerator) for one in asked]
    calls = [(at % 2, text) for at, text in enumerate(TEXTS * 2)]
    found = side_by_side(lambda c: fast[c[0]].search(c[1], return_context=True), calls)
    assert found == [asked[at].search(text, return_context=True) for at, text in calls]
    for (at, _), result in zip(calls, found, strict=True):
        own, other = ("One", "Two") if at == 0 else ("Two", "One")
        assert result.answer.startswith(own)
        assert f"{other}: " not in result.answer


def test_an_edit_is_seen_by_the_next_search(
    programs: GraphPrograms, accelerator: Accelerator
) -> None:
    programs.cypher = "MATCH (n:Fact) RETURN n.text AS text"
    plain = programs.text2cypher()
    fast = accelerate(plain, accelerator=accelerator)
    before = fast.search(query_text="all")
    programs.driver.execute_query("MATCH (n:Fact {at: 0}) DETACH DELETE n")
    after = fast.search(query_text="all")
    assert (len(before.items), len(after.items)) == (len(TEXTS), len(TEXTS) - 1)
    assert isinstance(plain, Text2CypherRetriever)
