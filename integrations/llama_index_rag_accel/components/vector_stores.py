"""Nodes in an index whose searches all requests share."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import (
    DEFAULT_PERSIST_DIR,
    DEFAULT_PERSIST_FNAME,
    BasePydanticVectorStore,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryResult,
)

from llama_index_rag_accel.components.node_documents import (
    Condition,
    as_document,
    as_node,
    check_filters,
    check_query,
    condition,
    equal_values,
    search_query,
    texts_in,
)
from rag_accel.accelerator import Accelerator
from rag_accel.adoption.shared_index import (
    Hits,
    SharedIndex,
    ahybrid_search,
    hybrid_search,
    hybrid_search_among,
)
from rag_accel.config import is_enabled
from rag_accel.engine_api import HybridQuery, SearchQuery
from rag_accel.engines.retrieval import DocumentIndex, IndexSpec, Metric, load_index, save_index
from rag_accel.engines.retrieval.hybrid.rankings import HybridSpec
from rag_accel.errors import ConfigError
from rag_accel.interception.fallback import start_in_pool
from rag_accel.interception.identity import identity_for
from rag_accel.interception.leaf_call import is_nested, note_leaf

T = TypeVar("T")

_EVEN = HybridSpec(dense_weight=0.5, lexical_weight=0.5)


class RagAccelVectorStore(BasePydanticVectorStore):
    """A store of nodes with vectors; searches of all requests run in shared steps.

    A score is the cosine, and equal scores are ordered by insertion. In hybrid mode it is that of
    the fusion of two rankings, by cosine and by the words of the question (BM25 of the texts of
    the nodes, without their metadata); ``alpha`` weighs them, 0 for words and 1 for vectors alone,
    and ``hybrid_top_k``, by default ``similarity_top_k``, nodes are found.

    Filters that only ask for equal values are searched in shared steps, too; with other filters,
    ``node_ids`` or ``doc_ids`` the nodes are compared one by one in the caller's thread, or in one
    of the accelerator's for an async call. An empty ``node_ids`` or ``doc_ids`` of a query stands
    for all nodes.

    Args:
        index: holds the nodes; by default a flat one, made with the first node.
        hybrid: how deep the rankings of hybrid mode are looked into, how words are told apart, and
            what weighs where ``alpha`` is None; by default both rankings weigh 0.5.
        accelerator: schedules the work; by default the current run's, else the process default.

    Raises:
        ConfigError: an index of another metric than the inner product.
        ImportError: FAISS is not installed; names the extra.
    """

    stores_text: bool = True

    __rag_accel_scheduled__: ClassVar[bool] = True
    _shared: SharedIndex = PrivateAttr()
    _hybrid: HybridSpec = PrivateAttr()
    _accelerator: Accelerator | None = PrivateAttr(default=None)

    def __init__(
        self,
        index: DocumentIndex | None = None,
        *,
        hybrid: HybridSpec | None = None,
        accelerator: Accelerator | None = None,
    ) -> None:
        super().__init__(stores_text=True)
        if index is not None and index.spec.metric is Metric.L2:
            raise ConfigError(
                "a vector store of cosines needs an index of inner products",
                where="index",
                found=index.spec.metric.name,
                valid=Metric.INNER_PRODUCT.name,
            )
        self._shared = SharedIndex(index, normalize=True)
        self._hybrid = _EVEN if hybrid is None else hybrid
        self._accelerator = accelerator

    @classmethod
    def class_name(cls) -> str:
        """Return the name it is serialised under."""
        return "RagAccelVectorStore"

    @property
    def client(self) -> DocumentIndex | None:
        """Return the index; None before the first node of a store made without one."""
        return self._shared.index

    def scheduled_by(self, accelerator: Accelerator) -> RagAccelVectorStore:
        """Return a store over the same index on another accelerator."""
        made = self.model_copy()
        made._accelerator = accelerator
        return made

    def explain_on(self, accelerator: Accelerator) -> str:
        """Return how an accelerator runs its searches."""
        return self._shared.describe(self._accelerator or accelerator, self._hybrid)

    # Changing ---------------------------------------------------------------------------------

    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """Store nodes with their embeddings, all or none; a known id is replaced.

        Raises:
            ConfigError: an embedding has another dimension than those stored.
        """
        vectors = [node.get_embedding() for node in nodes]
        self._shared.add(list(map(as_document, nodes)), vectors)
        return [node.node_id for node in nodes]

    async def async_add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """Do as ``add`` without blocking the loop."""
        return await self._off_loop(self.add, nodes)

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Forget the nodes of a source document; an unknown one is ignored."""
        self._forget(condition(None, doc_ids=[ref_doc_id]))

    async def adelete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Do as ``delete`` without blocking the loop."""
        await self._off_loop(self.delete, ref_doc_id)

    def delete_nodes(
        self,
        node_ids: list[str] | None = None,
        filters: MetadataFilters | None = None,
        **delete_kwargs: Any,
    ) -> None:
        """Forget the nodes that have one of these ids and pass the filters; None stands for all."""
        check_filters(filters)
        self._forget(condition(filters, node_ids))

    async def adelete_nodes(
        self,
        node_ids: list[str] | None = None,
        filters: MetadataFilters | None = None,
        **delete_kwargs: Any,
    ) -> None:
        """Do as ``delete_nodes`` without blocking the loop."""
        await self._off_loop(self.delete_nodes, node_ids, filters)

    def clear(self) -> None:
        """Forget all nodes; the dimension stays."""
        self._forget(condition(None))

    async def aclear(self) -> None:
        """Do as ``clear`` without blocking the loop."""
        await self._off_loop(self.clear)

    def _forget(self, is_meant: Condition) -> None:
        ids = [found.id for found in self._shared.documents_that(is_meant)]
        self._shared.delete(ids, self._accelerator, texts_in)

    # Reading ----------------------------------------------------------------------------------

    def get_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        """Return the nodes of these ids, in this order, that pass the filters; without embeddings.

        Without ids all that pass, by insertion. Unknown ids are left out.
        """
        check_filters(filters)
        is_meant = condition(filters)
        if node_ids is None:
            found = self._shared.documents_that(is_meant)
        else:
            found = [document for document in self._shared.get(node_ids) if is_meant(document)]
        return list(map(as_node, found))

    async def aget_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        """Do as ``get_nodes`` without blocking the loop."""
        return await self._off_loop(self.get_nodes, node_ids, filters)

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """Return the nodes nearest to a vector with their scores, best first.

        Raises:
            ConfigError: another mode than default and hybrid, no vector or one of another
                dimension, nested filters or an operator that is not supported; in hybrid mode no
                text, or a number out of range.
        """
        asked, is_meant = self._checked(query)
        if is_meant is not None:
            return _result(self._search_among(asked, is_meant))
        if isinstance(asked, HybridQuery):
            hits = hybrid_search(self._shared, asked, self._hybrid, self._accelerator)
            return _result(hits)
        return _result(self._shared.search(asked, self._accelerator))

    async def aquery(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """Do as ``query`` without blocking the loop."""
        asked, is_meant = self._checked(query)
        if is_meant is not None:
            return _result(await self._off_loop(self._search_among, asked, is_meant))
        if isinstance(asked, HybridQuery):
            hits = await ahybrid_search(self._shared, asked, self._hybrid, self._accelerator)
            return _result(hits)
        return _result(await self._shared.asearch(asked, self._accelerator))

    def _search_among(self, asked: SearchQuery, is_meant: Condition) -> Hits:
        if isinstance(asked, HybridQuery):
            return hybrid_search_among(self._shared, asked, self._hybrid, is_meant)
        return self._shared.search_among(asked, is_meant)

    def _checked(self, query: VectorStoreQuery) -> tuple[SearchQuery, Condition | None]:
        """Return what to search for, and the condition where it is no equality of values."""
        check_query(query)
        check_filters(query.filters)
        where = equal_values(query.filters)
        nodes, sources = query.node_ids or None, query.doc_ids or None
        asked = search_query(query, where or None)
        if not is_nested(self):
            note_leaf(self, (), "owned" if is_enabled() else None, "search")
        if where is not None and nodes is None and sources is None:
            return asked, None
        return asked, condition(query.filters, nodes, sources)

    async def _off_loop(self, fn: Callable[..., T], *args: Any) -> T:
        identity = identity_for(self._accelerator)
        call = partial(fn, *args)
        running = None
        if identity is not None:
            running = start_in_pool(identity.accelerator, call, "retrieval")
        return await (asyncio.to_thread(call) if running is None else running)

    # Keeping ----------------------------------------------------------------------------------

    def persist(self, persist_path: str = "", fs: Any = None) -> None:
        """Write the nodes and vectors to a file; raises like ``save_index``.

        Args:
            persist_path: by default where ``from_persist_dir`` looks.
            fs: a file system of the package fsspec; by default the local one.
        """
        path = persist_path or _path_in(DEFAULT_PERSIST_DIR, "default")
        # A file says its dimension; of an empty store without one, ``_opened`` forgets it.
        index = self._shared.index or DocumentIndex(IndexSpec(1))
        if fs is None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            save_index(index, path, self.class_name())
            return
        fs.makedirs(os.path.dirname(path), exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            local = os.path.join(folder, "index")
            save_index(index, local, self.class_name())
            fs.put_file(local, path)

    @classmethod
    def from_persist_path(
        cls, persist_path: str, fs: Any = None, **options: Any
    ) -> RagAccelVectorStore:
        """Return the store that was persisted; ``options`` are the constructor's.

        Raises:
            IndexFileError: the file is damaged or no store of this class.
            OSError: the file cannot be read.
        """
        if fs is None:
            return cls(_opened(persist_path), **options)
        with tempfile.TemporaryDirectory() as folder:
            local = os.path.join(folder, "index")
            fs.get_file(persist_path, local)
            return cls(_opened(local), **options)

    @classmethod
    def from_persist_dir(
        cls,
        persist_dir: str = DEFAULT_PERSIST_DIR,
        namespace: str = "default",
        fs: Any = None,
        **options: Any,
    ) -> RagAccelVectorStore:
        """Return the store that ``StorageContext.persist(persist_dir)`` has written."""
        return cls.from_persist_path(_path_in(persist_dir, namespace), fs, **options)

    def __getstate__(self) -> dict[Any, Any]:
        index = self._shared.index
        snapshot = None if index is None else index.snapshot()
        own = {"hybrid": self._hybrid, "accelerator": self._accelerator}
        return {"snapshot": snapshot, **own}

    def __setstate__(self, state: dict[Any, Any]) -> None:
        snapshot = state["snapshot"]
        index = None if snapshot is None else DocumentIndex.from_snapshot(snapshot)
        hybrid = state.get("hybrid")  # a pickle of before hybrid mode has none
        accelerator = state["accelerator"]
        self.__init__(index, hybrid=hybrid, accelerator=accelerator)  # type: ignore[misc]

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> RagAccelVectorStore:
        made = object.__new__(type(self))
        made.__setstate__(self.__getstate__())
        return made


def _path_in(folder: str, namespace: str) -> str:
    return os.path.join(folder, f"{namespace}__{DEFAULT_PERSIST_FNAME}")


def _opened(path: str) -> DocumentIndex | None:
    index = load_index(path, fingerprint=RagAccelVectorStore.class_name())
    return index if len(index) else None


def _result(hits: Hits) -> VectorStoreQueryResult:
    return VectorStoreQueryResult(
        nodes=[as_node(hit.document) for hit in hits],
        similarities=[hit.score for hit in hits],
        ids=[hit.document.id for hit in hits],
    )
