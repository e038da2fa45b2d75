"""Local vector stores, searched in a copy of their vectors with the same results.

The store stays the truth: texts, metadata and the vectors that decide are read from it in every
search; the copy only says which few of them can be among the nearest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import is_, itemgetter
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from rag_accel.engine_api import Document as IndexedDocument
from rag_accel.engine_api import ScoredDocument, SearchQuery
from rag_accel.engines.retrieval import DocumentIndex, IndexSpec
from rag_accel.engines.retrieval.index.locks import RenewedLock

#: a document, its score and its vector, as ``InMemoryVectorStore`` finds them
Found = list[tuple[Any, float, Any]]

#: looked at beyond ``k``, so that near ties at the cut seldom need more
MARGIN = 4
#: what a score changes when vectors of length one are rounded to float32
ROUNDING = 4e-7
#: by how much more it changes with the order in which it is summed, in float64 and in float32
SUMMING = {8: 1e-12, 4: 1e-5}
#: the methods that make an ``InMemoryVectorStore`` what it is
_ITS_METHODS = (
    "_similarity_search_with_score_by_vector",
    "similarity_search_with_score_by_vector",
    "similarity_search_with_score",
    "similarity_search_by_vector",
    "similarity_search",
    "max_marginal_relevance_search_by_vector",
    "max_marginal_relevance_search",
    "asimilarity_search_with_score",
    "asimilarity_search_by_vector",
    "asimilarity_search",
    "amax_marginal_relevance_search",
)

Rows = npt.NDArray[np.float64]


class CopiedVectors:
    """An index of a store's vectors.

    Attributes:
        index: inner products of vectors of length one.
        vectors: the copied objects in their places; kept, so that none gets another's identity.
        places: where each vector of the index stands among them.
        version: changes with them.
    """

    def __init__(self, vectors: list[Any], rows: Rows) -> None:
        self.index = DocumentIndex(IndexSpec(rows.shape[1]))
        self.vectors: list[Any] = []
        self.places: dict[str, list[int]] = {}
        self.version = 0
        self._names: dict[int, str] = {}
        self._whole: tuple[list[Any], Any, Any] | None = None
        self._take(vectors, rows, vectors)

    def stands_for(self, vectors: list[Any]) -> bool:
        """Tell whether these are the very objects that were copied, in their places."""
        return len(vectors) == len(self.vectors) and all(map(is_, vectors, self.vectors))

    def follow(self, vectors: list[Any]) -> bool:
        """Copy what is new among these, forget what is gone; False if they do not fit."""
        new = [vector for vector in vectors if id(vector) not in self._names]
        rows = rows_of(new) if new else np.empty((0, self.index.spec.dimension))
        if rows is None or rows.shape[1] != self.index.spec.dimension:
            return False
        self._take(vectors, rows, new)
        return True

    def _take(self, vectors: list[Any], rows: Rows, new: list[Any]) -> None:
        self.version += 1
        names, places = dict[int, str](), dict[str, list[int]]()
        for place, vector in enumerate(vectors):
            name = self._names.get(id(vector)) or f"{self.version}.{id(vector)}"
            names[id(vector)] = name
            places.setdefault(name, []).append(place)
        self.index.delete(set(self._names.values()) - places.keys())
        self.index.add([IndexedDocument(names[id(vector)], "") for vector in new], unit(rows))
        self.vectors, self._names, self.places = vectors, names, places

    def similarity(self, query: Any, vectors: list[Any]) -> Any:
        """Return the cosine with each of these, to the last bit as LangChain computes it."""
        whole = self._whole
        if whole is None or whole[0] is not vectors:
            whole = self._whole = vectors, *_measured(vectors)
        return _cosine(query, *whole[1:])


@dataclass(frozen=True, slots=True)
class StoreView:
    """What a search sees of a store: its entries in their order, and a copy of their vectors.

    Args:
        entries: the store's own.
        copied: what was made of the vectors in the entries.
        vectors: these, and ``places`` and ``version``, as ``copied`` had them then.
    """

    entries: list[Mapping[str, Any]]
    copied: CopiedVectors
    vectors: list[Any]
    places: Mapping[str, list[int]]
    version: int

    @property
    def is_current(self) -> bool:
        """Tell whether nothing was changed since; what was searched until now was this then."""
        return self.copied.version == self.version


class StoreCopy:
    """The copy of one store's vectors, kept up to date; used from any thread."""

    def __init__(self) -> None:
        self._lock = RenewedLock()
        self._copied: CopiedVectors | None = None
        #: vectors of which no copy can be made
        self._refused: list[Any] = []

    def look(self, store: Any) -> StoreView | None:
        """Return the store as it is now; ``None`` if it has no vectors that can be copied.

        Raises whatever the entries raise that were put into the store.
        """
        entries = list(store.store.values())
        vectors = list(map(itemgetter("vector"), entries))
        if not vectors:
            return None
        with self._lock.lock:
            copied = self._copied
            if copied is None or not copied.stands_for(vectors):
                self._copied = None  # for good, should this be interrupted
                is_followed = copied is not None and copied.follow(vectors)
                copied = self._copied = copied if is_followed else self._copy(vectors)
            if copied is None:
                return None
            return StoreView(entries, copied, copied.vectors, copied.places, copied.version)

    def forget(self) -> None:
        """Copy everything anew at the next look."""
        with self._lock.lock:
            self._copied = None

    def _copy(self, vectors: list[Any]) -> CopiedVectors | None:
        if len(vectors) == len(self._refused) and all(map(is_, vectors, self._refused)):
            return None
        rows = rows_of(vectors)
        self._refused = [] if rows is not None else vectors
        return None if rows is None else CopiedVectors(vectors, rows)


_copies: WeakKeyDictionary[Any, StoreCopy] = WeakKeyDictionary()


def copy_of(store: Any) -> StoreCopy:
    """Return the copy of a store, made on first use; it lives as long as the store."""
    found = _copies.get(store)
    return found if found is not None else _copies.setdefault(store, StoreCopy())


def search_query(view: StoreView, vector: Any, k: Any) -> SearchQuery | None:
    """Return what to ask the index for; ``None`` if the question is not an ordinary one."""
    if type(k) is not int or k < 1:
        return None
    query = rows_of([vector])
    if query is None or query.shape[1] != view.copied.index.spec.dimension or not query.any():
        return None
    return SearchQuery(unit(query)[0], k + MARGIN)


def found_by(
    view: StoreView, vector: Any, k: int, hits: Sequence[ScoredDocument], copy: StoreCopy
) -> Found | None:
    """Return what the store would find, given what its copy has found for ``search_query``.

    None where the store itself is to say that there is no answer: all its vectors are zero.

    Scores are those of the store's own vectors. Where they say that the copy is not the store's
    any more, and where they do not settle the order, every vector of the store is looked at.
    """
    query = np.array([vector])
    places = [place for hit in hits for place in view.places[hit.document.id]]
    copied = [hit.score for hit in hits for _ in view.places[hit.document.id]]
    scores = _cosine(query, *_measured([view.vectors[place] for place in places]))
    if not any(copied):
        return None
    summing = SUMMING[scores.dtype.itemsize]
    if np.abs(scores - copied).max() > ROUNDING + summing:
        copy.forget()  # a vector was changed in its place
        return _first(view, _cosine(query, *_measured(view.vectors)), k)
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    is_all = len(places) == len(view.entries)
    is_cut_clear = is_all or ranked[k - 1] > copied[-1] + ROUNDING + summing
    if not is_cut_clear or np.any(-np.diff(ranked[: k + 1]) < summing):
        return _first(view, view.copied.similarity(query, view.vectors), k)
    return [_one(view, places[at], scores[at]) for at in order[:k]]


def rows_of(vectors: Sequence[Any]) -> Rows | None:
    """Return vectors ``[n, d]`` as float64; ``None`` unless they are finite and of one length."""
    try:
        rows = np.asarray(vectors)
    except (TypeError, ValueError):
        return None
    if rows.ndim != 2 or not rows.size or rows.dtype.kind not in "fiu" or rows.itemsize < 4:
        return None
    return rows.astype(np.float64) if np.isfinite(rows).all() else None


def unit(rows: Rows) -> Rows:
    """Return vectors of length one; a zero vector stays one."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1.0)


def _cosine(query: Any, rows: Any, lengths: Any) -> Any:
    with np.errstate(divide="ignore", invalid="ignore"):
        similarity = np.dot(query, rows.T) / np.outer(np.linalg.norm(query, axis=1), lengths)
    similarity[~np.isfinite(similarity)] = 0.0
    return similarity[0]


def _measured(vectors: list[Any]) -> tuple[Any, Any]:
    rows = np.array(vectors)
    return rows, np.linalg.norm(rows, axis=1)


def _first(view: StoreView, similarity: Any, k: int) -> Found:
    return [_one(view, int(place), similarity[place]) for place in similarity.argsort()[::-1][:k]]


def _one(view: StoreView, place: int, score: Any) -> tuple[Any, float, Any]:
    from langchain_core.documents import Document

    entry = view.entries[place]
    found = Document(id=entry["id"], page_content=entry["text"], metadata=entry["metadata"])
    return found, float(score), view.vectors[place]


def searches_as_known(cls: type, method: Callable[[type, str], object]) -> bool:
    """Tell whether stores of a class are LangChain's ``InMemoryVectorStore`` in how they search.

    Args:
        method: returns a class's method as its program wrote it.
    """
    from langchain_core.vectorstores import InMemoryVectorStore, utils

    if not issubclass(cls, InMemoryVectorStore) or getattr(utils, "_HAS_SIMSIMD", False):
        return False
    return all(method(cls, name) is method(InMemoryVectorStore, name) for name in _ITS_METHODS)
