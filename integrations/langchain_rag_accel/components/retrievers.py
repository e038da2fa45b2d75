"""Retrieval from a store through the scheduler, with the number of documents chosen per call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import VectorStore
from pydantic import PrivateAttr

from langchain_rag_accel.accelerate import accelerate


class RagAccelRetriever(BaseRetriever):
    """A retriever of the documents of a store that are nearest to a question.

    ``invoke(question, k=..., filter=...)`` overrides what the retriever was made with; other
    keyword arguments go to the store's search as they are.

    Args:
        store: any vector store; a ``RagAccelVectorStore`` searches in shared steps, another one
            is scheduled as it is.
        k: how many documents to return.
        filter: what the store takes as ``filter``, if given.
    """

    store: VectorStore
    k: int = 4
    filter: Mapping[str, Any] | None = None

    #: the store as it was when it was accelerated, and accelerated
    _scheduled: tuple[VectorStore, VectorStore] | None = PrivateAttr(default=None)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        return self._search().similarity_search(query, **self._options(kwargs))

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        return await self._search().asimilarity_search(query, **self._options(kwargs))

    def _search(self) -> VectorStore:
        if self._scheduled is None or self._scheduled[0] is not self.store:
            self._scheduled = (self.store, accelerate(self.store))
        return self._scheduled[1]

    def _options(self, given: dict[str, Any]) -> dict[str, Any]:
        own: dict[str, Any] = {"k": self.k}
        if self.filter is not None:
            own["filter"] = self.filter
        return {**own, **given}
