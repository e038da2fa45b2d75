"""Bad input, tenants and edits of property graph programs over a real Neo4j."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("llama_index.graph_stores.neo4j")

from li_graph_programs import GraphLLM, aretrieve, filled, retrieve
from li_off_loop import own_settings
from li_programs import run_in_loop
from llama_index.core.graph_stores.types import EntityNode, Relation
from llama_index.core.indices.property_graph import LLMSynonymRetriever, PGRetriever
from llama_index.graph_stores.neo4j import Neo4jPropertyGraphStore
from neo4j_server import BoltServer

from llama_index_rag_accel import accelerate
from rag_accel import Accelerator

TIMES = 6

pytestmark = [
    pytest.mark.neo4j,
    # The store fills itself by what pydantic has replaced.
    pytest.mark.filterwarnings("ignore:The `dict` method is deprecated"),
]


@contextmanager
def opened(server: BoltServer, **settings: Any) -> Iterator[Neo4jPropertyGraphStore]:
    """Give a store on a server."""
    arguments: dict[str, Any] = {"url": server.uri, "refresh_schema": False} | settings
    store = Neo4jPropertyGraphStore(server.user, server.password, **arguments)
    try:
        yield store
    finally:
        store.close()
        run_in_loop(store._async_driver.close())  # which nobody uses or closes upstream


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """Set models that threads may share."""
    with own_settings():
        yield


@pytest.fixture
def store(neo4j_server: BoltServer, neo4j_driver: Any) -> Iterator[Neo4jPropertyGraphStore]:
    """Give a store that is filled."""
    with opened(neo4j_server) as made:
        filled(made)
        made.structured_query("CALL db.awaitIndexes(60)")
        yield made


def words(store: Any, given: str, **options: Any) -> PGRetriever:
    """Return a retriever whose model gives these words."""
    sub = LLMSynonymRetriever(
        store,
        include_text=False,
        llm=GraphLLM(words=given),
        output_parsing_fn=lambda text: text.split("^"),
        **options,
    )
    return PGRetriever([sub])


def outcome(find: Callable[[], Any]) -> Any:
    """Return what a call gives, or the class and the text of its error."""
    try:
        return find()
    except Exception as error:
        return type(error), str(error)


def same(program: Any, accelerator: Accelerator) -> Any:
    """Return the outcome of a program, once it was seen to be the same accelerated."""
    plain = outcome(lambda: retrieve(program))
    fast = accelerate(program, accelerator=accelerator)
    assert outcome(lambda: retrieve(fast)) == plain
    assert outcome(lambda: run_in_loop(aretrieve(fast))) == plain
    assert accelerator.is_idle
    return plain


NAMES = ["Nobody", "", "O'Hara", 'a "b"', "a\nb", "a`b", "x'}) DETACH DELETE n //"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("options", [{}, {"path_depth": 0}, {"limit": 0}])
def test_any_name_and_bound_does_as_plainly(
    store: Neo4jPropertyGraphStore, accelerator: Accelerator, name: str, options: dict[str, int]
) -> None:
    if name not in ("", "Nobody"):
        store.upsert_nodes([EntityNode(name=name)])
        source = store.get(properties={"name": name})[0].id
        store.upsert_relations([Relation(label="to", source_id=source, target_id="E1")])
        name = source
    before = store.structured_query("MATCH (n) RETURN count(n) AS n")
    same(words(store, name, **options), accelerator)
    assert store.structured_query("MATCH (n) RETURN count(n) AS n") == before


def fill_other(store: Neo4jPropertyGraphStore) -> None:
    """Add what a tenant's own request is to see."""
    store.upsert_relations([Relation(label="new", source_id="E1", target_id="E2")])


def test_two_stores_over_one_database_each_give_what_they_give_plainly(
    neo4j_server: BoltServer, store: Neo4jPropertyGraphStore, accelerator: Accelerator
) -> None:
    async def at_once() -> list[Any]:
        return await asyncio.gather(*(aretrieve(one) for one in fast * TIMES))

    with opened(neo4j_server) as other:
        programs = [words(store, "E1"), words(other, "E2")]
        plain = [retrieve(one) for one in programs]
        fast = [accelerate(one, accelerator=accelerator) for one in programs]
        assert plain[0] != plain[1]
        assert run_in_loop(at_once()) == plain * TIMES


def test_a_tenant_whose_database_is_unknown_fails_alone(
    neo4j_server: BoltServer, store: Neo4jPropertyGraphStore, accelerator: Accelerator
) -> None:
    async def at_once() -> list[Any]:
        asked = (aretrieve(one) for one in fast * TIMES)
        return await asyncio.gather(*asked, return_exceptions=True)

    with opened(neo4j_server) as elsewhere:
        elsewhere._database = "nowhere"
        programs = [words(store, "E1"), words(elsewhere, "E1")]
        plain = [outcome(lambda one=one: retrieve(one)) for one in programs]
        fast = [accelerate(one, accelerator=accelerator) for one in programs]
        found = run_in_loop(at_once())
    assert [found[0], (type(found[1]), str(found[1]))] == plain
    assert found[::2] == [plain[0]] * TIMES
    assert {type(one) for one in found[1::2]} == {plain[1][0]}


def test_a_closed_store_does_as_plainly(
    neo4j_server: BoltServer, store: Neo4jPropertyGraphStore, accelerator: Accelerator
) -> None:
    with opened(neo4j_server) as closed:
        closed.close()
        assert isinstance(same(words(closed, "E1"), accelerator)[0], type)


def test_edits_between_requests_are_seen(
    store: Neo4jPropertyGraphStore, accelerator: Accelerator
) -> None:
    program = words(store, "E1", path_depth=1)
    before = same(program, accelerator)
    fill_other(store)
    after = same(program, accelerator)
    assert after != before
    store.delete(entity_names=["E1"])
    assert same(program, accelerator) == []
