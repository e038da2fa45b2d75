"""Retrieval from a store through the scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)

from llama_index_rag_accel.accelerate import accelerate
from llama_index_rag_accel.components.query_modes import query_mode
from rag_accel.errors import ConfigError


class RagAccelRetriever(BaseRetriever):
    """A retriever of the nodes of a store that are nearest to a question, without an index.

    Args:
        store: a vector store that keeps the nodes themselves; a ``RagAccelVectorStore`` searches
            in shared steps, another one is scheduled as it is.
        embed_model: embeds questions; scheduled too.
        similarity_top_k: how many nodes to return.
        filters: what their metadata must be.
        node_ids: only these nodes, if given.
        doc_ids: only nodes of these source documents, if given.
        vector_store_query_mode: how the store searches; ``RagAccelVectorStore`` knows ``default``
            and ``hybrid``.
        alpha: in hybrid mode, what vectors weigh against words: 0 for words, 1 for vectors alone.
        sparse_top_k: in hybrid mode, how many nodes are taken of the ranking by words.
        hybrid_top_k: in hybrid mode, how many nodes to return; ``similarity_top_k`` are then taken
            of the ranking by vectors.
        arguments: those of ``BaseRetriever``.

    Raises:
        ConfigError: the store keeps vectors only, or there is no such mode.
    """

    __rag_accel_scheduled__ = True

    def __init__(
        self,
        store: BasePydanticVectorStore,
        embed_model: BaseEmbedding,
        *,
        similarity_top_k: int = 2,
        filters: MetadataFilters | None = None,
        node_ids: Sequence[str] | None = None,
        doc_ids: Sequence[str] | None = None,
        vector_store_query_mode: VectorStoreQueryMode | str = VectorStoreQueryMode.DEFAULT,
        alpha: float | None = None,
        sparse_top_k: int | None = None,
        hybrid_top_k: int | None = None,
        **arguments: Any,
    ) -> None:
        if not store.stores_text:
            raise ConfigError(
                "a retriever over a store that keeps no nodes",
                where="store",
                found=type(store).__name__,
                valid="a store with stores_text, such as RagAccelVectorStore",
                hint="make the retriever with VectorStoreIndex(...).as_retriever()",
            )
        self.store, self.embed_model = store, embed_model
        self.similarity_top_k = similarity_top_k
        self.filters, self.node_ids, self.doc_ids = filters, node_ids, doc_ids
        self.vector_store_query_mode = query_mode(vector_store_query_mode)
        self.alpha, self.sparse_top_k, self.hybrid_top_k = alpha, sparse_top_k, hybrid_top_k
        self._scheduled = accelerate(store), accelerate(embed_model)
        super().__init__(**arguments)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        store, model = self._scheduled
        vector = question_vector(model, query_bundle)
        return _scored(store.query(self._query(query_bundle, vector)))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        store, model = self._scheduled
        vector = await aquestion_vector(model, query_bundle)
        return _scored(await store.aquery(self._query(query_bundle, vector)))

    def _query(self, bundle: QueryBundle, vector: list[float]) -> VectorStoreQuery:
        return VectorStoreQuery(
            query_embedding=vector,
            similarity_top_k=self.similarity_top_k,
            node_ids=None if self.node_ids is None else list(self.node_ids),
            doc_ids=None if self.doc_ids is None else list(self.doc_ids),
            query_str=bundle.query_str,
            filters=self.filters,
            mode=self.vector_store_query_mode,
            alpha=self.alpha,
            sparse_top_k=self.sparse_top_k,
            hybrid_top_k=self.hybrid_top_k,
        )


def question_vector(model: BaseEmbedding, bundle: QueryBundle) -> list[float]:
    """Return the vector of a question: the caller's own, else that of its texts."""
    if bundle.embedding is not None:
        return bundle.embedding
    return model.get_agg_embedding_from_queries(bundle.embedding_strs)


async def aquestion_vector(model: BaseEmbedding, bundle: QueryBundle) -> list[float]:
    """Do as ``question_vector`` without blocking the loop."""
    if bundle.embedding is not None:
        return bundle.embedding
    return await model.aget_agg_embedding_from_queries(bundle.embedding_strs)


def _scored(found: VectorStoreQueryResult) -> list[NodeWithScore]:
    nodes = list(found.nodes or [])
    scores = found.similarities or [None] * len(nodes)
    return [
        NodeWithScore(node=node, score=score) for node, score in zip(nodes, scores, strict=True)
    ]
