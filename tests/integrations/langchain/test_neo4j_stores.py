"""``Neo4jVector`` over a real Neo4j: the documents and scores of the plain one, and scheduled."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

pytest.importorskip("langchain_neo4j")

from graph_programs import run_three_ways
from langchain_neo4j import Neo4jVector
from lc_fakes import FakeEmbeddings, vector_of
from neo4j.exceptions import Neo4jError
from neo4j_programs import ODD, TEXTS, graph_at, store_over
from neo4j_server import BoltServer

from langchain_rag_accel import accelerate, activate
from rag_accel import Accelerator

pytestmark = [
    pytest.mark.neo4j,
    # Whoever searches is warned, accelerated or not.
    pytest.mark.filterwarnings("ignore:The default returned 'id' field:DeprecationWarning"),
]

KINDS: dict[str, dict[str, Any]] = {
    "vector": {},
    "euclidean": {"distance_strategy": "EUCLIDEAN_DISTANCE"},
    "hybrid": {"search_type": "hybrid"},
    "retrieval query": {
        "retrieval_query": "RETURN 'got ' + node.text AS text, score, "
        "{number: node.number, of: labels(node)} AS metadata"
    },
}
#: the full-text index takes these for no query
NO_WORDS = ["", "ferry AND (rock) OR *:*"]
QUESTIONS = ["the ferry", "an island's rock", *ODD, *NO_WORDS]
#: searches that are asked every question; the others take the same way, and are asked some
ASKED_ALL = ("search", "async scores")

Search = Callable[[Any, str], Any]


def _awaited(name: str, **settings: Any) -> Search:
    return lambda store, asked: asyncio.run(getattr(store, name)(asked, **settings))


def _called(name: str, **settings: Any) -> Search:
    return lambda store, asked: getattr(store, name)(asked, **settings)


SEARCHES: dict[str, Search] = {
    "search": _called("similarity_search", k=3),
    "async search": _awaited("asimilarity_search", k=3),
    "scores": _called("similarity_search_with_score", k=10),
    "async scores": _awaited("asimilarity_search_with_score"),
    "relevance": _called("similarity_search_with_relevance_scores", k=2),
    "wide": _called("similarity_search_with_score", k=2, effective_search_ratio=2),
    "by vector": lambda store, asked: store.similarity_search_by_vector(
        vector_of(asked), query=asked
    ),
    "retriever": lambda store, asked: store.as_retriever(search_kwargs={"k": 2}).invoke(asked),
    "async retriever": lambda store, asked: asyncio.run(store.as_retriever().ainvoke(asked)),
    "none": _called("similarity_search_with_score", k=0),
}
#: searches that only stores of the default query answer
PLAIN_SEARCHES: dict[str, Search] = {
    "tenant": _called("similarity_search", filter={"tenant": "a"}),
    "numbers": _called("similarity_search", filter={"number": {"$gte": 1}}),
    "diverse": _called("max_marginal_relevance_search", k=2, fetch_k=4),
    "async diverse": _awaited("amax_marginal_relevance_search", k=2, fetch_k=3),
    "bad filter": _called("similarity_search", filter={"`x` //": {"$unknown": 1}}),
}


@pytest.fixture
def graph(neo4j_server: BoltServer, neo4j_driver: Any) -> Iterator[Any]:
    with graph_at(neo4j_server, refresh_schema=False) as made:
        yield made


def _search(search: Search, asked: str, store: Any, config: Any) -> Any:
    return search(store, asked)


def three_results(store: Any, run: Any, accelerator: Accelerator) -> list[str]:
    """Return what a search of a store finds, bare, accelerated and activated."""
    return [found for found, _ in run_three_ways(lambda: store, run, accelerator)]


@pytest.mark.cross_product(keep=2)
@pytest.mark.parametrize("kind", KINDS)
def test_every_search_finds_what_the_plain_one_does(
    kind: str, graph: Any, accelerator: Accelerator
) -> None:
    store = store_over(graph, **KINDS[kind])
    searches = SEARCHES | (PLAIN_SEARCHES if kind == "vector" else {})
    for name, search in searches.items():
        for asked in QUESTIONS if name in ASKED_ALL else ("the ferry", *NO_WORDS):
            bare, *others = three_results(store, partial(_search, search, asked), accelerator)
            assert others == [bare, bare], (name, asked)
            is_refused = name == "bad filter" or (kind == "hybrid" and asked in NO_WORDS)
            assert bare.startswith("<class") == is_refused, (name, asked)


async def test_tenants_that_search_at_once_find_their_own(
    graph: Any, accelerator: Accelerator
) -> None:
    fast = accelerate(store_over(graph), accelerator=accelerator)
    tenants = ["a", "b"] * 8
    found = await asyncio.gather(
        *(fast.asimilarity_search("the ferry", filter={"tenant": tenant}) for tenant in tenants)
    )
    for tenant, documents in zip(tenants, found, strict=True):
        assert [one.metadata["tenant"] for one in documents] == [tenant, tenant]


def test_what_was_added_through_either_is_found_by_both(
    graph: Any, accelerator: Accelerator
) -> None:
    store = store_over(graph)
    fast = accelerate(store, accelerator=accelerator)
    for one, text in ((fast, "through the twin"), (store, "through the store")):
        assert len(one.add_texts([text])) == 1
        counted = "MATCH (n:Chunk {text: $text}) RETURN count(n) AS n"
        assert store.query(counted, params={"text": text}) == [{"n": 1}]
        assert store.similarity_search(text, k=1) == fast.similarity_search(text, k=1)
    assert len(fast.similarity_search("all", k=10)) == len(TEXTS) + 2


@pytest.mark.parametrize("kind", ["vector", "hybrid"])
def test_a_missing_index_is_named_as_plainly(
    kind: str, graph: Any, accelerator: Accelerator
) -> None:
    store = store_over(graph, **KINDS[kind])
    graph.query("DROP INDEX vector")
    search = partial(_search, SEARCHES["search"], "the ferry")
    bare, *others = three_results(store, search, accelerator)
    assert re.match("<class 'neo4j.exceptions.*vector", bare, re.DOTALL), bare
    assert others == [bare, bare]
    with activate(accelerator), pytest.raises(ValueError, match="index name does not exist"):
        Neo4jVector.from_existing_index(FakeEmbeddings(), index_name="vector", graph=graph)


@pytest.mark.parametrize(
    "vector", [[0.5, 0.5], [], [float("nan")] * 4, ["x"] * 4], ids=["short", "none", "nan", "text"]
)
def test_a_vector_that_does_not_fit_is_refused_as_plainly(
    vector: Any, graph: Any, accelerator: Accelerator
) -> None:
    store = store_over(graph)
    found: list[Any] = []
    for one in (store, accelerate(store, accelerator=accelerator)):
        with pytest.raises(Neo4jError) as caught:
            one.similarity_search_by_vector(vector)
        found.append((caught.type, caught.value.code, caught.value.message))
    assert found[0] == found[1]
