"""Hybrid searches of LangChain's vector stores over a shared index, sync and async."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.vectorstores import VectorStoreRetriever

from langchain_rag_accel.components.store_search import Filter, Scored, StoreSearch, document
from rag_accel.accelerator import Accelerator
from rag_accel.adoption.hybrid_search import ahybrid_search, hybrid_search, variant_of
from rag_accel.engine_api import HybridQuery
from rag_accel.engines.retrieval.hybrid.rankings import HybridSpec
from rag_accel.errors import ConfigError

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
        """Return which engines run the searches on an accelerator."""
        accelerator, index = self._accelerator or accelerator, self._shared.index
        engine = accelerator.engine_of(index) or "of its own, made with its first search"
        hybrid = (
            accelerator.engine_of(index, variant_of(self._hybrid))
            or "one more, made with the first"
        )
        return f"engine {engine}; hybrid searches: engine {hybrid}; callers share their steps"

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
