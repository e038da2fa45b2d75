"""Whole requests over a real Neo4j find what they find over the same triples in memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from triples import ODD_NAMES, Triple, fill, random_graph

from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.engines import BoltGraph, CallableEmbeddingEngine, MemoryGraph

pytestmark = pytest.mark.neo4j


@pytest.fixture
def indexed(neo4j_driver: Any) -> Any:
    """Return the driver of an empty database that knows entities by name."""
    neo4j_driver.execute_query("CREATE CONSTRAINT FOR (n:__Entity__) REQUIRE n.id IS UNIQUE")
    return neo4j_driver


def embed(texts: list[str]) -> Any:
    """Return vectors that count letters: ``[len(texts), 64], float32``."""
    rows = np.zeros((len(texts), 64), np.float32)
    for row, text in zip(rows, texts, strict=True):
        for letter in text:
            row[ord(letter) % 64] += 1
    return rows


def accelerated(graph: Any, **options: Any) -> Accelerator:
    return Accelerator(graph=graph, embedder=CallableEmbeddingEngine(embed, pure=True), **options)


def only(**options: Any) -> RAGraph:
    """Return a graph of one stage, from a question and names of entities to paths."""
    graph = RAGraph(("input", "names")).add_graph_retrieval("facts", keywords="names", **options)
    return graph.add_edge(START, "facts").add_edge("facts", END)


def hits(graph: Any, requests: list[list[str]], **options: Any) -> list[Any]:
    """Return what requests find that are asked at once."""
    stage = only(**options)
    with accelerated(graph) as acc, ThreadPoolExecutor(len(requests)) as users:
        return list(users.map(lambda names: acc.run(stage, input="a b", names=names), requests))


def triples() -> list[Triple]:
    """Return triples with odd names, loops, cycles and several edges between two entities."""
    return [one for seed in range(8) for one in random_graph(seed)]


@pytest.mark.cross_product(keep=2)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"hops": 3, "direction": "out", "fan_out": 3},
        {"direction": "in", "relations": ["likes", "`r`", "'"], "top_k": 3},
        {"max_paths": 7, "top_k": 50},
        {"hops": 0},
        {"top_k": 0},
        {"seeds": 0},
    ],
    ids=str,
)
def test_requests_find_the_same_paths_as_in_memory(indexed: Any, options: dict[str, Any]) -> None:
    fill(indexed, triples())
    # An empty keyword names nothing, whatever the graph holds.
    requests = [[name, "nobody", ""] for name in ODD_NAMES[:-1]] + [["a", "b", "a"], [], ["'"]]
    found = hits(BoltGraph(indexed), requests, **options)
    assert found == hits(MemoryGraph(triples()), requests, **options)
    bounds = [options.get(name, 1) for name in ("hops", "top_k", "seeds")]
    assert any(found) == all(bounds)
