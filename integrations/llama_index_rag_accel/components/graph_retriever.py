"""Paths of a knowledge graph as a retriever's nodes, found in steps that callers share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from llama_index_rag_accel.accelerate import accelerate
from llama_index_rag_accel.components.retrievers import aquestion_vector, question_vector
from rag_accel.accelerator import Accelerator
from rag_accel.adoption.graph_search import (
    GraphSearch,
    GraphSearchOptions,
    PathEmbedder,
    check_embedding,
    check_graph,
)
from rag_accel.engine_api import Direction, GraphHit
from rag_accel.graph.stages.graph_retrieval import Link

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
