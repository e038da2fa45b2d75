"""Every search of LangChain's vector stores over a shared index, sync and async."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore
from langchain_core.vectorstores.utils import maximal_marginal_relevance

from rag_accel.accelerator import Accelerator
from rag_accel.adoption.shared_index import Hits, SharedIndex
from rag_accel.config import is_enabled
from rag_accel.engine_api import Document as IndexedDocument
from rag_accel.engine_api import SearchQuery
from rag_accel.engines.retrieval import Metric
from rag_accel.errors import ConfigError
from rag_accel.interception.leaf_call import is_nested, note_leaf

Filter = Mapping[str, Any] | None
Scored = list[tuple[Document, float]]


class StoreSearch(VectorStore):
    """The searches of ``_shared`` with what ``_embedder`` makes of a question."""

    _shared: SharedIndex
    _embedder: Embeddings
    _accelerator: Accelerator | None

    def similarity_search_with_score_by_vector(
        self, embedding: list[float], k: int = 4, filter: Filter = None, **kwargs: Any
    ) -> Scored:
        """Return the documents nearest to a vector with their scores, best first."""
        return self._scored(self._find(embedding, k, filter, kwargs))

    async def asimilarity_search_with_score_by_vector(
        self, embedding: list[float], k: int = 4, filter: Filter = None, **kwargs: Any
    ) -> Scored:
        """Do as ``similarity_search_with_score_by_vector`` without blocking the loop."""
        return self._scored(await self._afind(embedding, k, filter, kwargs))

    def similarity_search_with_score(self, query: str, k: int = 4, **kwargs: Any) -> Scored:
        """Return the documents nearest to a question with their scores, best first."""
        vector = self._embedder.embed_query(query)
        return self.similarity_search_with_score_by_vector(vector, k, **kwargs)

    async def asimilarity_search_with_score(self, query: str, k: int = 4, **kwargs: Any) -> Scored:
        """Do as ``similarity_search_with_score`` without blocking the loop."""
        vector = await self._embedder.aembed_query(query)
        return await self.asimilarity_search_with_score_by_vector(vector, k, **kwargs)

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = 4, **kwargs: Any
    ) -> list[Document]:
        """Return the documents nearest to a vector, best first."""
        found = self.similarity_search_with_score_by_vector(embedding, k, **kwargs)
        return [document for document, _ in found]

    async def asimilarity_search_by_vector(
        self, embedding: list[float], k: int = 4, **kwargs: Any
    ) -> list[Document]:
        """Do as ``similarity_search_by_vector`` without blocking the loop."""
        found = await self.asimilarity_search_with_score_by_vector(embedding, k, **kwargs)
        return [document for document, _ in found]

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """Return the documents nearest to a question, best first."""
        return self.similarity_search_by_vector(self._embedder.embed_query(query), k, **kwargs)

    async def asimilarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """Do as ``similarity_search`` without blocking the loop."""
        vector = await self._embedder.aembed_query(query)
        return await self.asimilarity_search_by_vector(vector, k, **kwargs)

    def max_marginal_relevance_search_by_vector(
        self,
        embedding: list[float],
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        filter: Filter = None,
        **kwargs: Any,
    ) -> list[Document]:
        """Return documents that are near to a vector and unlike each other."""
        found = self._find(embedding, fetch_k, filter, kwargs)
        return self._diverse(embedding, found, k, lambda_mult)

    async def amax_marginal_relevance_search_by_vector(
        self,
        embedding: list[float],
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        filter: Filter = None,
        **kwargs: Any,
    ) -> list[Document]:
        """Do as ``max_marginal_relevance_search_by_vector`` without blocking the loop."""
        found = await self._afind(embedding, fetch_k, filter, kwargs)
        return self._diverse(embedding, found, k, lambda_mult)

    def max_marginal_relevance_search(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[Document]:
        """Return documents that are near to a question and unlike each other."""
        vector = self._embedder.embed_query(query)
        return self.max_marginal_relevance_search_by_vector(
            vector, k, fetch_k, lambda_mult, **kwargs
        )

    async def amax_marginal_relevance_search(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[Document]:
        """Do as ``max_marginal_relevance_search`` without blocking the loop."""
        vector = await self._embedder.aembed_query(query)
        return await self.amax_marginal_relevance_search_by_vector(
            vector, k, fetch_k, lambda_mult, **kwargs
        )

    def _find(self, vector: list[float], k: int, where: Filter, options: dict[str, Any]) -> Hits:
        return self._shared.search(self._query(vector, k, where, options), self._accelerator)

    async def _afind(
        self, vector: list[float], k: int, where: Filter, options: dict[str, Any]
    ) -> Hits:
        query = self._query(vector, k, where, options)
        return await self._shared.asearch(query, self._accelerator)

    def _query(
        self, vector: list[float], k: int, where: Filter, options: dict[str, Any]
    ) -> SearchQuery:
        for name in options.keys() - {"nprobe"}:
            raise _unknown_argument(name, options[name])
        if not is_nested(self):
            note_leaf(self, (), "owned" if is_enabled() else None, "search")
        return SearchQuery(vector, k, where, options.get("nprobe"))

    def _scored(self, hits: Hits) -> Scored:
        index = self._shared.index
        is_distance = index is not None and index.spec.metric is Metric.L2
        scored: Scored = []
        for hit in hits:
            score = 0.0 - hit.score if is_distance else hit.score
            scored.append((document(hit.document), score))
        return scored

    def _diverse(
        self, vector: list[float], hits: Hits, k: int, lambda_mult: float
    ) -> list[Document]:
        vectors = self._shared.vectors(hit.document.id for hit in hits)
        kept = [hit.document for hit in hits if hit.document.id in vectors]
        query = self._shared.scaled([vector])[0].astype(np.float32)
        rows = [vectors[found.id] for found in kept]
        chosen = maximal_marginal_relevance(query, rows, lambda_mult, k) if rows else []
        return [document(kept[position]) for position in chosen]


def _unknown_argument(name: str, value: object) -> ConfigError:
    hint = "LangChain's own stores ignore it; leave it out if nothing should depend on it"
    if name == "score_threshold":
        hint = "make the retriever with search_type='similarity_score_threshold'"
    return ConfigError(
        "an argument that a search does not know",
        where="search",
        found=f"{name}={value!r}",
        valid="k, filter, nprobe; fetch_k and lambda_mult too where results are to be diverse",
        hint=hint,
    )


def document(found: IndexedDocument) -> Document:
    """Return an index's document as LangChain's."""
    return Document(id=found.id, page_content=found.text, metadata=dict(found.metadata))
