"""The meter tells which leaf calls of a program passed the scheduler, and which did not."""

from __future__ import annotations

from llama_index.core.graph_stores import SimplePropertyGraphStore
from llama_index.core.graph_stores.types import EntityNode, Relation
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import VectorStoreQuery

from llama_index_rag_accel import activate
from llama_index_rag_accel.coverage import coverage
from rag_accel import Accelerator


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
