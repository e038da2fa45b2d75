"""Paths of random graphs are those that looking at every triple finds, in the stated order."""

from __future__ import annotations

import random

import pytest
from graph_harness import Triple, outputs, slow_walk, walk, work

from rag_accel.engine_api import ExpandBatch, LinkQuery
from rag_accel.engines import KnowledgeEngine, MemoryGraph

ENTITIES = ["a", "B", "b b", 'q"q', "n\nl", "x -> y", "é", "[1]", "", "(`)", "\U0001f600", "z,z"]
RELATIONS = ["r", "s t", "R", "MATCH (n) DETACH DELETE n"]


def random_graph(source: random.Random) -> list[Triple]:
    some = ENTITIES[: source.randint(1, len(ENTITIES))]
    return [
        (source.choice(some), source.choice(RELATIONS), source.choice(some))
        for _ in range(source.randint(0, 30))
    ]


def random_options(source: random.Random) -> dict[str, object]:
    return {
        "relations": source.choice([None, (), ("r",), ("s t", "R", "unknown")]),
        "direction": source.choice(["out", "in", "both"]),
        "fan_out": source.choice([0, 1, 2, 3, 32]),
        "limit": source.choice([0, 1, 4, 256]),
    }


@pytest.mark.parametrize("seed", range(10))
def test_a_hundred_random_graphs_equal_brute_force(seed: int) -> None:
    source = random.Random(seed)
    for _ in range(100):
        triples, options = random_graph(source), random_options(source)
        names, hops = source.sample(ENTITIES, source.randint(0, 4)), source.randint(0, 3)
        engine = KnowledgeEngine(MemoryGraph(triples))
        assert walk(engine, names, hops, **options) == slow_walk(triples, names, hops, **options)


def test_the_order_of_triples_does_not_matter() -> None:
    triples = random_graph(random.Random(3))
    shuffled = random.Random(4).sample(triples, len(triples))
    found, again = (
        walk(KnowledgeEngine(MemoryGraph(one)), ENTITIES, 2) for one in (triples, shuffled)
    )
    assert found == again != []


def test_a_hub_gives_no_more_edges_than_its_bound() -> None:
    hub = MemoryGraph([("hub", "has", f"{number:05}") for number in range(20_000)])
    found = walk(KnowledgeEngine(hub), ["hub"], 1, fan_out=8)
    assert found == [f"hub -> has -> {number:05}" for number in range(8)]


def test_a_second_hop_through_a_hub_is_bounded() -> None:
    hub = MemoryGraph([("hub", "has", f"{number:05}") for number in range(20_000)])
    found = walk(KnowledgeEngine(hub), ["00777"], 2, fan_out=20_000, limit=50)
    assert len(found) == 1 + 50


def test_no_entity_crowds_out_the_paths_of_another() -> None:
    triples = [("a", "r", f"a{number}") for number in range(9)] + [("b", "r", "b0")]
    found = walk(KnowledgeEngine(MemoryGraph(triples)), ["a", "b"], 1, limit=3)
    assert found == ["a -> r -> a0", "a -> r -> a1", "b -> r -> b0"]


def test_hops_of_many_requests_are_one_call_with_the_same_paths() -> None:
    source = random.Random(5)
    triples = random_graph(source) + random_graph(source)
    engine = KnowledgeEngine(MemoryGraph(triples))
    asked = {f"{number}": random_options(source) for number in range(40)}
    names = {name: tuple(source.sample(ENTITIES, 3)) for name in asked}
    found = outputs(engine, [work(name, LinkQuery(9, names=names[name])) for name in asked])
    before = engine.counts["hop_calls"]
    hops = outputs(
        engine,
        [work(name, ExpandBatch(found[name].value, **asked[name])) for name in asked],
    )
    assert engine.counts["hop_calls"] == before + 1
    for name, options in asked.items():
        alone = slow_walk(triples, names[name], 1, **options)
        assert list(hops[name].value.texts()) == alone
