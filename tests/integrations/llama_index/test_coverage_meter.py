"""The meter tells which leaf calls of a program passed the scheduler, and which did not."""

from __future__ import annotations

import asyncio

import pytest
from li_programs import QUERY_ENGINES, EchoLLM, HashEmbedding, Parts, run_in_loop
from llama_index.core.graph_stores import SimplePropertyGraphStore
from llama_index.core.graph_stores.types import EntityNode, Relation
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.storage.kvstore import SimpleKVStore
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import VectorStoreQuery

from llama_index_rag_accel import accelerate, activate
from llama_index_rag_accel.coverage import Coverage, coverage
from rag_accel import Accelerator


@pytest.mark.parametrize("name", QUERY_ENGINES)
def test_no_call_of_an_accelerated_engine_passes_by(name: str, accelerator: Accelerator) -> None:
    engine = accelerate(QUERY_ENGINES[name](Parts()), accelerator=accelerator)
    with coverage() as meter:
        engine.query("When did the bridge open?")
    assert meter.rows()
    assert meter.passed_by == 0, str(meter)


@pytest.mark.parametrize("name", list(QUERY_ENGINES)[:4])
def test_no_async_call_of_an_accelerated_engine_passes_by(
    name: str, accelerator: Accelerator
) -> None:
    engine = accelerate(QUERY_ENGINES[name](Parts()), accelerator=accelerator)

    async def ask() -> Coverage:
        with coverage() as meter:
            await asyncio.gather(*(engine.aquery(f"When, {number}?") for number in range(4)))
            return meter

    meter = run_in_loop(ask())
    assert meter.rows()
    assert meter.passed_by == 0, str(meter)


def test_every_call_of_a_plain_engine_passes_by(accelerator: Accelerator) -> None:
    engine = QUERY_ENGINES["compact"](Parts())
    other = accelerate(QUERY_ENGINES["compact"](Parts()), accelerator=accelerator)
    with coverage() as meter:
        engine.query("When did the bridge open?")
    kinds = {row.kind: row.passed_by for row in meter.rows()}
    assert kinds["language model"] == 1
    assert kinds["embedding"] == 1
    assert kinds["retriever"] == 1
    del other  # while it lived, the patches stood


def test_an_answer_of_the_cache_is_neither_scheduled_nor_passed_by(
    accelerator: Accelerator,
) -> None:
    embedding = accelerate(HashEmbedding(embeddings_cache=SimpleKVStore()), accelerator=accelerator)
    with coverage() as meter:
        embedding.get_text_embedding("a")
        embedding.get_text_embedding("a")
    (row,) = meter.rows()
    assert (row.seen, row.cached, row.scheduled, row.passed_by) == (2, 1, 1, 0)


def test_stores_and_postprocessors_are_counted_without_events(accelerator: Accelerator) -> None:
    store, graph = SimpleVectorStore(), SimplePropertyGraphStore()
    node = TextNode(text="a", id_="1", embedding=[1.0, 0.0])
    people = [EntityNode(name="Ann"), EntityNode(name="Bo")]
    graph.upsert_nodes(people)
    graph.upsert_relations([Relation(label="knows", source_id="Ann", target_id="Bo")])
    with coverage() as meter, activate(accelerator):
        store.add([node])
        store.query(VectorStoreQuery(query_embedding=[1.0, 0.0]))
        graph.get_triplets(entity_names=["Ann"])
        SimilarityPostprocessor(similarity_cutoff=0.5).postprocess_nodes(
            [NodeWithScore(node=node, score=0.9)]
        )
    found = {row.kind: (row.scheduled, row.passed_by) for row in meter.rows()}
    assert found == {"vector store": (2, 0), "graph store": (1, 0), "postprocessor": (1, 0)}


def test_a_stream_is_one_call(accelerator: Accelerator) -> None:
    model = accelerate(EchoLLM(), accelerator=accelerator)
    with coverage() as meter:
        "".join(one.delta or "" for one in model.stream_complete("When?"))
    (row,) = meter.rows()
    assert (row.kind, row.scheduled, row.passed_by) == ("language model", 1, 0)
