"""Retrievers over a store or a knowledge graph, whose searches share steps with other callers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import VectorStore
from pydantic import ConfigDict, Field, PrivateAttr

from langchain_rag_accel.accelerate import accelerate
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


_OPTIONS = ("k", "hops", "seeds", "link", "relations", "direction", "fan_out", "max_paths")


class RagAccelGraphRetriever(BaseRetriever):
    """A retriever of the paths of a knowledge graph that are nearest to a question.

    It finds what a ``GraphRetrieval`` stage finds. A document holds a path's text, such as
    ``a -> knows -> b``, which is its id, too; its metadata hold ``entities``, ``relations``,
    ``forward`` (whether each relation is walked from its head to its tail) and ``score``, the
    cosine. ``invoke(question, k=..., hops=...)`` overrides what the retriever was made with, and
    ``invoke(question, keywords=[...])`` names the entities to start from: a list of texts, or one
    text that separates them by commas or lines.

    Args:
        graph: a ``MemoryGraph``, a ``BoltGraph``, or a ``KnowledgeEngine`` over a graph for each
            namespace; one that is ``Accelerator(graph=...)``, too, is served by that engine.
        embedding: makes the vectors of the question and of paths; scheduled too.
        k: most paths.
        hops: longest path, in edges.
        seeds: most entities to start from.
        link: how they are found: by ``vector``, or by the ``words`` of their names.
        relations: which relations to follow; ``None`` follows all.
        direction: along edges (``out``), against them (``in``) or both ways.
        fan_out: most edges of one entity in one direction.
        max_paths: most paths of each length.
        accelerator: schedules the work; by default the current run's, else the process default.

    Raises:
        ConfigError: no knowledge graph, no embeddings, an unknown option or one out of range; a
            call raises it for its own options.
    """

    __rag_accel_scheduled__ = True

    model_config = ConfigDict(arbitrary_types_allowed=True)

    graph: Any = Field(default=None, exclude=True)
    embedding: Any = Field(default=None, exclude=True)
    k: int = 10
    hops: int = 2
    seeds: int = 5
    link: Link = "vector"
    relations: str | list[str] | None = None
    direction: Direction = "both"
    fan_out: int = 32
    max_paths: int = 256
    accelerator: Accelerator | None = Field(default=None, exclude=True)

    #: the embeddings and the accelerator as they were, and these embeddings accelerated
    _scheduled: tuple[Any, Accelerator | None, Embeddings] | None = PrivateAttr(None)

    def __init__(self, **options: Any) -> None:
        # Here and not in validators, which would wrap these errors into another one.
        check_graph(options.get("graph"))
        _check_embedding(options.get("embedding"))
        fields = type(self).model_fields
        own = {
            name: value for name, value in options.items() if name in _OPTIONS or name not in fields
        }
        GraphSearchOptions.of(own, top_k="k")
        super().__init__(**options)

    def scheduled_by(self, accelerator: Accelerator) -> RagAccelGraphRetriever:
        """Return a retriever of the same graph on another accelerator."""
        return self.model_copy(update={"accelerator": accelerator})

    def explain_on(self, accelerator: Accelerator) -> str:
        """Return how an accelerator runs its searches."""
        return self._search().describe(self.accelerator or accelerator)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        keywords = kwargs.pop("keywords", None)
        return _documents(self._search().search(query, self._options(kwargs), keywords))

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        keywords = kwargs.pop("keywords", None)
        return _documents(await self._search().asearch(query, self._options(kwargs), keywords))

    def _options(self, given: dict[str, Any]) -> GraphSearchOptions:
        own = {name: getattr(self, name) for name in _OPTIONS}
        return GraphSearchOptions.of({**own, **given}, top_k="k")

    def _search(self) -> GraphSearch:
        check_graph(self.graph)  # fields may be set later
        embedder = self._embedder()
        calls = PathEmbedder(
            query=embedder.embed_query,
            texts=embedder.embed_documents,
            aquery=embedder.aembed_query,
            atexts=embedder.aembed_documents,
        )
        return GraphSearch(self.graph, calls, self, self.accelerator)

    def _embedder(self) -> Embeddings:
        known = self._scheduled
        if known is None or known[0] is not self.embedding or known[1] is not self.accelerator:
            embedding, accelerator = self.embedding, self.accelerator
            _check_embedding(embedding)
            made = accelerate(embedding, accelerator=accelerator)
            known = self._scheduled = (embedding, accelerator, made)
        return known[2]


def _check_embedding(given: Any) -> None:
    valid = "an Embeddings object of LangChain"
    check_embedding(given, Embeddings, "embedding", valid, "RagAccelEmbeddings")


def _documents(hits: tuple[GraphHit, ...]) -> list[Document]:
    return [
        Document(
            id=hit.document.id,
            page_content=hit.document.text,
            metadata={
                "entities": list(hit.path.entities),
                "relations": list(hit.path.relations),
                "forward": list(hit.path.forward),
                "score": hit.score,
            },
        )
        for hit in hits
    ]
