"""Retrievers over a store or a knowledge graph, whose searches share steps with other callers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)

from llama_index_rag_accel.accelerate import accelerate
from llama_index_rag_accel.components.node_documents import query_mode
from rag_accel.accelerator import Accelerator
from rag_accel.adoption.graph_search import (
    GraphSearch,
    GraphSearchOptions,
    PathEmbedder,
    check_embedding,
    check_graph,
)
from rag_accel.engine_api import Direction, GraphHit
from rag_accel.errors import ConfigError
from rag_accel.graph.stages.graph_retrieval import Link


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


_TOP_K = "similarity_top_k"
_OPTIONS = (_TOP_K, "hops", "seeds", "link", "relations", "direction", "fan_out", "max_paths")


class RagAccelGraphRetriever(BaseRetriever):
    """A retriever of the paths of a knowledge graph that are nearest to a question.

    It finds what a ``GraphRetrieval`` stage finds. A node holds a path's text, such as
    ``a -> knows -> b``, which is its id, too; its metadata hold ``entities``, ``relations`` and
    ``forward`` (whether each relation is walked from its head to its tail), none of which a prompt
    or an embedding shows; its score is the cosine. Options are attributes and may be set later.

    Args:
        graph: a ``MemoryGraph``, a ``BoltGraph``, or a ``KnowledgeEngine`` over a graph for each
            namespace; one that is ``Accelerator(graph=...)``, too, is served by that engine.
        embed_model: makes the vectors of the question and of paths; scheduled too.
        similarity_top_k: most paths.
        hops: longest path, in edges.
        seeds: most entities to start from.
        link: how they are found: by ``vector``, or by the ``words`` of their names.
        relations: which relations to follow; ``None`` follows all.
        direction: along edges (``out``), against them (``in``) or both ways.
        fan_out: most edges of one entity in one direction.
        max_paths: most paths of each length.
        accelerator: schedules the work; by default the current run's, else the process default.
        arguments: those of ``BaseRetriever``.

    Raises:
        ConfigError: no knowledge graph, no embeddings, or an option out of range; a call raises it
            for what was set later.
    """

    __rag_accel_scheduled__ = True

    def __init__(
        self,
        graph: Any = None,
        embed_model: BaseEmbedding | None = None,
        *,
        similarity_top_k: int = 10,
        hops: int = 2,
        seeds: int = 5,
        link: Link = "vector",
        relations: str | Sequence[str] | None = None,
        direction: Direction = "both",
        fan_out: int = 32,
        max_paths: int = 256,
        accelerator: Accelerator | None = None,
        **arguments: Any,
    ) -> None:
        self.graph, self.embed_model, self.accelerator = graph, embed_model, accelerator
        self.similarity_top_k, self.hops, self.seeds = similarity_top_k, hops, seeds
        self.link, self.relations, self.direction = link, relations, direction
        self.fan_out, self.max_paths = fan_out, max_paths
        #: the embeddings and the accelerator as they were, and these embeddings accelerated
        self._scheduled: tuple[Any, Accelerator | None, BaseEmbedding] | None = None
        check_graph(graph)
        _checked_embedding(embed_model)
        self._options()
        super().__init__(**arguments)

    def explain_on(self, accelerator: Accelerator) -> str:
        """Return how an accelerator runs its searches."""
        return self._search(QueryBundle("")).describe(self.accelerator or accelerator)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        search = self._search(query_bundle)
        return _nodes(search.search(query_bundle.query_str, self._options()))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        search = self._search(query_bundle)
        return _nodes(await search.asearch(query_bundle.query_str, self._options()))

    def _options(self) -> GraphSearchOptions:
        return GraphSearchOptions.of({name: getattr(self, name) for name in _OPTIONS}, _TOP_K)

    def _search(self, bundle: QueryBundle) -> GraphSearch:
        check_graph(self.graph)
        model = self._model()
        calls = PathEmbedder(
            query=lambda _: question_vector(model, bundle),
            texts=model.get_text_embedding_batch,
            aquery=lambda _: aquestion_vector(model, bundle),
            atexts=model.aget_text_embedding_batch,
        )
        return GraphSearch(self.graph, calls, self, self.accelerator)

    def _model(self) -> BaseEmbedding:
        known = self._scheduled
        if known is None or known[0] is not self.embed_model or known[1] is not self.accelerator:
            model = _checked_embedding(self.embed_model)
            made = accelerate(model, accelerator=self.accelerator)
            known = self._scheduled = (self.embed_model, self.accelerator, made)
        return known[2]


def _checked_embedding(given: Any) -> BaseEmbedding:
    valid = "a BaseEmbedding of LlamaIndex"
    check_embedding(given, BaseEmbedding, "embed_model", valid, "RagAccelEmbedding")
    return given


def _nodes(hits: tuple[GraphHit, ...]) -> list[NodeWithScore]:
    return [NodeWithScore(node=_node(hit), score=float(hit.score)) for hit in hits]


def _node(hit: GraphHit) -> TextNode:
    metadata = {
        "entities": list(hit.path.entities),
        "relations": list(hit.path.relations),
        "forward": list(hit.path.forward),
    }
    # The text says the same: a prompt must hold it as it is, so that its KV cache can be reused.
    return TextNode(
        id_=hit.document.id,
        text=hit.document.text,
        metadata=metadata,
        excluded_llm_metadata_keys=list(metadata),
        excluded_embed_metadata_keys=list(metadata),
    )
