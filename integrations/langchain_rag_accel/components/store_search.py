"""Every search of LangChain's vector stores over a shared index, sync and async."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import numpy as np
from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore, VectorStoreRetriever
from langchain_core.vectorstores.utils import maximal_marginal_relevance

from rag_accel.accelerator import Accelerator
from rag_accel.adoption.shared_index import (
    Hits,
    SharedIndex,
    ahybrid_search,
    hybrid_search,
)
from rag_accel.config import is_enabled
from rag_accel.engine_api import Document as IndexedDocument
from rag_accel.engine_api import HybridQuery, SearchQuery
from rag_accel.engines.retrieval import Metric
from rag_accel.engines.retrieval.hybrid.rankings import HybridSpec
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


HYBRID = "hybrid"
_OPTIONS = frozenset({"k", "filter", "nprobe"})


class HybridStoreSearch(StoreSearch):
    """Searches of ``_shared`` by vector and by words, fused as ``_hybrid`` says."""

    _hybrid: HybridSpec

    def hybrid_search_with_score(
        self, query: str, k: int = 4, filter: Filter = None, **kwargs: Any
    ) -> Scored:
        """Return the documents nearest to a question by vector and by words, best first.

        A score is that of the fusion, higher is better, whatever the metric of the index.

        Raises:
            ConfigError: an unknown argument, a ``k`` out of range, or a wrong filter.
        """
        check_hybrid_options(kwargs)
        vector = self._embedder.embed_query(query)
        asked = self._hybrid_query(query, vector, k, filter, kwargs)
        hits = hybrid_search(self._shared, asked, self._hybrid, self._accelerator)
        return [(document(hit.document), hit.score) for hit in hits]

    async def ahybrid_search_with_score(
        self, query: str, k: int = 4, filter: Filter = None, **kwargs: Any
    ) -> Scored:
        """Do as ``hybrid_search_with_score`` without blocking the loop."""
        check_hybrid_options(kwargs)
        vector = await self._embedder.aembed_query(query)
        asked = self._hybrid_query(query, vector, k, filter, kwargs)
        hits = await ahybrid_search(self._shared, asked, self._hybrid, self._accelerator)
        return [(document(hit.document), hit.score) for hit in hits]

    def search(self, query: str, search_type: str, **kwargs: Any) -> list[Document]:
        """Return the documents of a search, ``hybrid`` or one of LangChain's own types."""
        if search_type != HYBRID:
            return super().search(query, search_type, **kwargs)
        return [found for found, _ in self.hybrid_search_with_score(query, **kwargs)]

    async def asearch(self, query: str, search_type: str, **kwargs: Any) -> list[Document]:
        """Do as ``search`` without blocking the loop."""
        if search_type != HYBRID:
            return await super().asearch(query, search_type, **kwargs)
        return [found for found, _ in await self.ahybrid_search_with_score(query, **kwargs)]

    def as_retriever(self, **kwargs: Any) -> VectorStoreRetriever:
        """Return a retriever over this store; ``search_type`` may be ``hybrid``, too.

        Raises:
            ConfigError: ``search_kwargs`` that a hybrid search does not know.
        """
        if kwargs.get("search_type") != HYBRID:
            return super().as_retriever(**kwargs)
        check_hybrid_options(kwargs.get("search_kwargs") or {})
        tags = [*(kwargs.pop("tags", None) or []), *self._get_retriever_tags()]
        return HybridStoreRetriever(vectorstore=self, tags=tags, **kwargs)

    def explain_on(self, accelerator: Accelerator) -> str:
        """Return how an accelerator runs its searches."""
        return self._shared.describe(self._accelerator or accelerator, self._hybrid)

    def _hybrid_query(
        self, text: str, vector: list[float], k: int, where: Filter, options: dict[str, Any]
    ) -> HybridQuery:
        query = self._query(vector, k, where, options)
        return HybridQuery(query.vector, k, where, query.nprobe, text=text)


class HybridStoreRetriever(VectorStoreRetriever):
    """LangChain's retriever over a store, for hybrid searches too."""

    allowed_search_types: ClassVar[Collection[str]] = (
        *VectorStoreRetriever.allowed_search_types,
        HYBRID,
    )

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        options = {**self.search_kwargs, **kwargs}
        return self.vectorstore.search(query, self.search_type, **options)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        options = {**self.search_kwargs, **kwargs}
        return await self.vectorstore.asearch(query, self.search_type, **options)


def checked_hybrid(spec: Any) -> HybridSpec:
    """Return the specification of a store; raises ConfigError if it is another thing."""
    if spec is None:
        return HybridSpec()
    if isinstance(spec, HybridSpec):
        return spec
    raise ConfigError(
        "hybrid searches are specified by an object",
        where="hybrid",
        found=repr(spec),
        valid="a HybridSpec, or None for its defaults",
    )


def check_hybrid_options(options: Collection[str]) -> None:
    """Raise ConfigError for an argument that means nothing in a hybrid search."""
    for name in options:
        if name not in _OPTIONS:
            raise ConfigError(
                "an argument that a hybrid search does not know",
                where="search",
                found=name,
                valid=", ".join(sorted(_OPTIONS)),
                hint=_HINTS.get(name),
            )


_HINTS = {
    "fetch_k": "how many documents each ranking gives is the store's: hybrid=HybridSpec(...)",
    "lambda_mult": "search_type='mmr' makes results diverse",
    "score_threshold": "a score of the fusion tells ranks, not how near; leave it out",
}
