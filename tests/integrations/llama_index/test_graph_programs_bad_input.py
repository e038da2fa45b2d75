"""Odd names, odd graphs, edits: a property graph program gives what it gives plainly."""

from __future__ import annotations

import asyncio

import pytest
from idle_accelerators import soon_idle
from li_graph_programs import (
    AskedGraph,
    GraphLLM,
    GraphParts,
    aretrieve,
    filled,
    retrieve,
    retriever,
)
from li_graph_stores import outcomes_on_one_loop, same, words
from li_programs import run_in_loop
from llama_index.core.graph_stores import SimplePropertyGraphStore
from llama_index.core.graph_stores.types import EntityNode, Relation

from llama_index_rag_accel import accelerate
from rag_accel import Accelerator

HUB_EDGES = 20_000
TIMES = 3


def star(edges: int) -> SimplePropertyGraphStore:
    """Return a graph of one entity with so many edges."""
    store = SimplePropertyGraphStore()
    store.upsert_nodes([EntityNode(name=f"E{at}") for at in range(edges + 1)])
    store.upsert_relations(
        [Relation(label="to", source_id="E0", target_id=f"E{at + 1}") for at in range(edges)]
    )
    return store


def test_a_hub_is_cut_where_the_store_cuts_it(accelerator: Accelerator) -> None:
    # Some edges are loops: upstream takes long for a hub that no tail leads back to.
    store = star(100)
    store.upsert_relations(
        [
            Relation(label=f"to {at}", source_id="E0", target_id=f"E{at % 100}")
            for at in range(HUB_EDGES)
        ]
    )
    assert len(same(words(store, "E0"), accelerator, TIMES)) == 30


ODD = ["A 'quoted' name", 'A "quoted" name', "A\nline", "A_to_b", "A^b", "A -> b", "A`b", ""]


@pytest.mark.parametrize("name", ODD)
def test_odd_names_are_found_as_plainly(accelerator: Accelerator, name: str) -> None:
    store = star(80)
    store.upsert_nodes([EntityNode(name=name)])
    node = next(one for one in store.graph.nodes.values() if getattr(one, "name", None) == name)
    store.upsert_relations([Relation(label="to", source_id=node.id, target_id="E1")])
    assert same(
        words(store, f"{node.id}^E1", output_parsing_fn=lambda text: [text[:-3]]),
        accelerator,
        TIMES,
    )


def test_edits_between_questions_of_one_loop_are_seen(accelerator: Accelerator) -> None:
    program = words(star(80), "E80", path_depth=1, limit=1000)
    store = program.sub_retrievers[0]._graph_store
    fast = accelerate(program, accelerator=accelerator)

    async def ask_and_edit() -> None:
        for at in range(8):
            found = await asyncio.gather(*(aretrieve(fast) for _ in range(4)))
            assert found == [await aretrieve(program)] * 4
            store.upsert_relations([Relation(label=f"n{at}", source_id="E80", target_id="E0")])

    run_in_loop(ask_and_edit())


def test_tenants_find_what_is_in_their_own_graphs(accelerator: Accelerator) -> None:
    programs = [words(filled(SimplePropertyGraphStore(), seed), "E1") for seed in (1, 2)]
    plain = [retrieve(one) for one in programs]
    fast = [accelerate(one, accelerator=accelerator) for one in programs]
    assert plain[0] != plain[1]
    assert outcomes_on_one_loop(fast, TIMES) == plain * TIMES


def test_an_invalid_query_of_a_model_raises_the_store_s_error(accelerator: Accelerator) -> None:
    parts = GraphParts(filled(AskedGraph()), GraphLLM(cypher="DROP all"))
    fast = accelerate(retriever(parts, "text to Cypher"), accelerator=accelerator)
    with pytest.raises(ValueError, match=r"^no query: DROP all$"):
        fast.retrieve("q")
    with pytest.raises(ValueError, match=r"^no query: DROP all$"):
        run_in_loop(aretrieve(fast))
    assert soon_idle(accelerator)
