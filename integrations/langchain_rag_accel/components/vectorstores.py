"""Documents in an index whose searches all requests share."""

from __future__ import annotations

import asyncio
import copy
import os
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore

from langchain_rag_accel.accelerate import accelerate
from langchain_rag_accel.components.store_search import HybridStoreSearch, checked_hybrid, document
from rag_accel.accelerator import Accelerator
from rag_accel.adoption.shared_index import SharedIndex
from rag_accel.engine_api import Document as IndexedDocument
from rag_accel.engines.retrieval import DocumentIndex, Metric, load_index, read_header, save_index
from rag_accel.engines.retrieval.hybrid.rankings import HybridSpec
from rag_accel.engines.retrieval.vectors.checks import checked_ids
from rag_accel.errors import IndexFileError
from rag_accel.interception.fallback import start_in_pool
from rag_accel.interception.identity import identity_for

#: Stored documents embedded again to tell whether embeddings make the vectors of a stored index.
#: A name says too little: one class makes many kinds of vectors, and a moved model keeps its own.
NUM_COMPARED = 3

MAX_DIFFERENCE = 0.1
"""Of two vectors, in lengths of the longer one: a cosine of 0.995.

Rounding to bfloat16 moves a vector by 0.004 of its length at most; unrelated ones are 1.4 apart.
"""


def embedder_name(embedding: Embeddings) -> str:
    """Return what to call embeddings: class and model, without the folder it lies in."""
    name = getattr(embedding, "model_name", None) or getattr(embedding, "model", None)
    cls = type(embedding)
    model = f" {os.path.basename(os.path.normpath(name))}" if isinstance(name, str) else ""
    return f"{cls.__module__}.{cls.__qualname__}{model}"


def require_same_embedder(
    index: DocumentIndex,
    path: str | os.PathLike[str],
    embedding: Embeddings,
    scaled: Callable[[Sequence[Sequence[float]]], Any],
) -> None:
    """Raise IndexFileError unless these embeddings make the vectors of an index.

    Args:
        index: as loaded.
        path: where from.
        embedding: called once, with up to ``NUM_COMPARED`` documents.
        scaled: brings vectors to the length they are held in.
    """
    texts, stored = _sample(index)
    made = scaled(embedding.embed_documents(texts))
    found = _difference(made, len(texts), stored, index.spec.dimension)
    if found is None:
        return
    raise IndexFileError(
        "a stored index of another embedder",
        where=str(path),
        found=f"{embedder_name(embedding)}, {found}",
        valid=f"one that makes the vectors of {read_header(path).fingerprint!r}, "
        f"dimension {index.spec.dimension}, within {MAX_DIFFERENCE:g} of their length",
        hint="use the embedder the index was made with, or build the index again; if its vectors "
        "were not made of the documents' texts, pass check_embedder=False",
    )


def _sample(index: DocumentIndex) -> tuple[list[str], Any]:
    """Return the first, middle and last text with their vectors ``[n, dim]``.

    Of an empty index it is any text without a vector, which shows at least the dimension.
    """
    with index.reading():
        view = index.view()
        labels = view.documents.labels()
        if not len(labels):
            return ["text"], None
        places = np.unique(np.linspace(0, len(labels) - 1, NUM_COMPARED).astype(np.int64))
        texts = [view.documents[label].text for label in labels[places].tolist()]
        return texts, view.vectors.gather(labels[places]).astype(np.float64)


def _difference(made: Any, count: int, stored: Any, dimension: int) -> str | None:
    """Say in what vectors differ; None where they do not."""
    if made.shape != (count, dimension):
        return f"vectors of shape {made.shape} for {count} texts"
    if stored is None:
        return None
    lengths = np.maximum(np.linalg.norm(made, axis=1), np.linalg.norm(stored, axis=1))
    apart = np.linalg.norm(made - stored, axis=1)
    is_same = np.isfinite(apart) & (apart <= MAX_DIFFERENCE * lengths)
    if is_same.all():
        return None
    worst = float(np.max(apart[~is_same] / lengths[~is_same]))
    return f"vectors that are {worst:.2g} of their length away from the stored ones"


class RagAccelVectorStore(HybridStoreSearch):
    """A store of documents with vectors; searches of all requests run in shared steps.

    A score is the cosine by default (higher is nearer), the inner product without ``normalize``,
    and the squared distance for an L2 index (lower is nearer). ``filter`` is a mapping of metadata
    fields to the values they must equal; ``nprobe`` is how many clusters an IVF index visits.
    ``search(query, "hybrid")`` and ``as_retriever(search_type="hybrid")`` also go by words.

    Args:
        embedding: makes the vectors; scheduled too.
        index: holds the documents; by default a flat one, made with the first document.
        normalize: scale vectors to length one, as cosine similarity needs.
        accelerator: schedules the work; by default the current run's, else the process default.
        hybrid: how hybrid searches rank and fuse; by default as ``HybridSpec()``.

    Raises:
        ImportError: FAISS is not installed; names the extra.
    """

    __rag_accel_scheduled__ = True

    def __init__(
        self,
        embedding: Embeddings,
        index: DocumentIndex | None = None,
        *,
        normalize: bool = True,
        accelerator: Accelerator | None = None,
        hybrid: HybridSpec | None = None,
    ) -> None:
        self.embedding = embedding
        self._hybrid = checked_hybrid(hybrid)
        self._shared = SharedIndex(index, normalize)
        self._accelerator = accelerator
        self._embedder = accelerate(embedding, accelerator=accelerator)

    def scheduled_by(self, accelerator: Accelerator) -> RagAccelVectorStore:
        """Return a store over the same index on another accelerator."""
        made = copy.copy(self)
        made._accelerator = accelerator
        made._embedder = accelerate(self.embedding, accelerator=accelerator)
        return made

    @property
    def embeddings(self) -> Embeddings:
        """Return what makes the vectors."""
        return self.embedding

    @property
    def index(self) -> DocumentIndex | None:
        """Return the index; None before the first document of a store made without one."""
        return self._shared.index

    # Changing ---------------------------------------------------------------------------------

    def add_documents(
        self, documents: list[Document], ids: list[str] | None = None, **kwargs: Any
    ) -> list[str]:
        """Embed and store documents; a known id is replaced. Returns their ids."""
        taken = _with_ids(documents, ids)
        self._shared.add(taken, self._embedder.embed_documents([doc.text for doc in taken]))
        return [document.id for document in taken]

    async def aadd_documents(
        self, documents: list[Document], ids: list[str] | None = None, **kwargs: Any
    ) -> list[str]:
        """Do as ``add_documents`` without blocking the loop."""
        taken = _with_ids(documents, ids)
        vectors = await self._embedder.aembed_documents([doc.text for doc in taken])
        await self._off_loop(self._shared.add, taken, vectors)
        return [document.id for document in taken]

    def delete(self, ids: Sequence[str] | None = None, **kwargs: Any) -> None:
        """Forget the documents of these ids; unknown ids are ignored, and none is none."""
        self._shared.delete(() if ids is None else ids, self._accelerator)

    async def adelete(self, ids: Sequence[str] | None = None, **kwargs: Any) -> None:
        """Do as ``delete`` without blocking the loop."""
        wanted = checked_ids(() if ids is None else ids)
        await self._off_loop(self._shared.delete, wanted, self._accelerator)

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Return the documents of these ids in this order, leaving out unknown ids."""
        return list(map(document, self._shared.get(ids)))

    async def aget_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Do as ``get_by_ids``; a look-up is too short to leave the loop for."""
        return self.get_by_ids(ids)

    async def _off_loop(self, fn: Callable[..., None], *args: Any) -> None:
        # A change may wait for clusters to be trained.
        identity = identity_for(self._accelerator)
        call = partial(fn, *args)
        running = identity and start_in_pool(identity.accelerator, call, "ingestion")
        await (running or asyncio.to_thread(call))

    # Making and keeping -----------------------------------------------------------------------

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **options: Any,
    ) -> RagAccelVectorStore:
        """Return a store of these texts; ``options`` are the constructor's."""
        store = cls(embedding, **options)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    @classmethod
    async def afrom_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **options: Any,
    ) -> RagAccelVectorStore:
        """Do as ``from_texts`` without blocking the loop."""
        store = cls(embedding, **options)
        await store.aadd_texts(texts, metadatas, ids=ids)
        return store

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the documents and vectors to a file; raises like ``save_index``."""
        index = self._shared.index
        if index is None:  # a file says its dimension, so find it out
            index = self._shared.of_dimension(len(self._embedder.embed_query("")))
        save_index(index, path, embedder_name(self.embedding))

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        embedding: Embeddings,
        *,
        check_embedder: bool = True,
        **options: Any,
    ) -> RagAccelVectorStore:
        """Return the store that was saved; ``options`` are the constructor's.

        Up to three of its documents are embedded again, to see that the vectors are those of
        ``embedding``; ``check_embedder=False`` leaves that out.

        Raises:
            IndexFileError: the file is damaged, or its vectors are of other embeddings.
            OSError: the file cannot be read.
        """
        index = load_index(path)
        store = cls(embedding, index, **options)
        if check_embedder:
            require_same_embedder(index, path, embedding, store._shared.scaled)
        return store

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        index = self._shared.index
        if index is not None and index.spec.metric is Metric.L2:
            return VectorStore._euclidean_relevance_score_fn
        return lambda score: max(0.0, score)


def _with_ids(
    documents: Iterable[Document], ids: Iterable[str | None] | None
) -> list[IndexedDocument]:
    given = list(documents)
    if isinstance(ids, str | bytes):
        checked_ids(ids)  # raises: its letters would pass for ids
    names = [document.id for document in given] if ids is None else list(ids)
    if len(names) != len(given):
        raise ValueError(
            f"ids must be the same length as texts. Got {len(names)} ids and {len(given)} texts."
        )
    return [
        IndexedDocument(name or str(uuid.uuid4()), document.page_content, document.metadata)
        for name, document in zip(names, given, strict=True)
    ]
