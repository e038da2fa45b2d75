"""Stores of LlamaIndex's own with random vectors, and what their searches show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.simple import SimpleVectorStore
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    VectorStoreQuery,
    VectorStoreQueryResult,
)

from rag_accel import Accelerator

DIMENSION = 8
COUNT = 200


def vectors(count: int, seed: int = 6, dimension: int = DIMENSION) -> list[list[float]]:
    """Return random vectors."""
    return np.random.default_rng(seed).normal(size=(count, dimension)).tolist()


def node(id_: str, vector: Sequence[float]) -> TextNode:
    """Return a node of a document of its own."""
    made = TextNode(id_=id_, text=id_, embedding=list(vector), metadata={"last": id_[-1]})
    made.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id=f"document {id_}")
    return made


def store_of(rows: Sequence[Sequence[float]]) -> SimpleVectorStore:
    """Return a store that holds these vectors, by number."""
    store = SimpleVectorStore()
    store.add([node(str(number), row) for number, row in enumerate(rows)])
    return store


def question(vector: Any, k: Any = 4, **more: Any) -> VectorStoreQuery:
    """Return a query for the nearest nodes."""
    return VectorStoreQuery(query_embedding=vector, similarity_top_k=k, **more)


Outcome = tuple[Any, Any]


def outcome(store: BasePydanticVectorStore, asked: VectorStoreQuery) -> Outcome:
    """Return similarities and ids that are found, or the error's class and text."""
    try:
        found = store.query(asked)
    except Exception as error:
        return type(error), str(error)
    return _shown(found)


async def aoutcome(store: BasePydanticVectorStore, asked: VectorStoreQuery) -> Outcome:
    """Do as ``outcome`` on a loop."""
    try:
        found = await store.aquery(asked)
    except Exception as error:
        return type(error), str(error)
    return _shown(found)


def _shown(found: VectorStoreQueryResult) -> Outcome:
    assert found.similarities is not None
    return list(map(repr, found.similarities)), found.ids


def searched(accelerator: Accelerator) -> int:
    """Return how many searches an owned engine has done."""
    found: Any = accelerator.metrics.snapshot().get("engines", {})
    return sum(one["items"] for name, one in found.items() if name.startswith("retrieval#"))
