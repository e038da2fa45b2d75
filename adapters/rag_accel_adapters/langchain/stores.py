"""Local vector stores, searched in a copy of their vectors with the same results.

The store stays the truth: texts, metadata and the vectors that decide are read from it in every
search; the copy only says which few of them can be among the nearest. It is made of stores that
are large and stay as they are for some searches; any other search is the store's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import is_, itemgetter
from types import MappingProxyType
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

#: numbers in a store's vectors from which an engine is faster: 200 documents of 384 numbers
MIN_NUMBERS = 76_800
#: entries below which not even the dimension is looked at; vectors seldom have more than 3072
MIN_ENTRIES = 25
#: searches of an unchanged store that are its own before a copy is made
SEARCHES = 3
#: looked at beyond ``k``, so that near ties at the cut seldom need more
MARGIN = 4
#: what a score changes when vectors of length one are rounded to float32
ROUNDING = 4e-7
#: by how much more it changes with the order in which it is summed, in float64 and in float32
SUMMING = {8: 1e-12, 4: 1e-5}
#: searches in a row that a copy may leave open before it is given up, and how many of them one
#: search that it settles makes up for
MAX_OPEN, SETTLED_WORTH = 16, 8
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
_ITS_NAMES = frozenset(_ITS_METHODS)
_NO_METADATA: Mapping[str, Any] = MappingProxyType({})

Rows = npt.NDArray[np.float64]
Method = Callable[[type, str], object]


@dataclass(frozen=True, slots=True)
class Look:
    """What a store held at one moment: the parts of its entries, in the store's order."""

    vectors: list[Any]
    ids: list[Any]
    texts: list[Any]
    metadata: list[Any]


@dataclass(frozen=True, slots=True)
class Copied:
    """One state of a copy.

    Args:
        version: changes with the others.
        vectors: the copied objects in their places; kept, so that none gets another's identity.
        places: where the vector of each name stands among them, for the first time.
        more_places: where else, if the store has the same object several times.
    """

    version: int
    vectors: list[Any]
    places: Mapping[str, int]
    more_places: Mapping[str, list[int]]

    def stands_for(self, vectors: list[Any]) -> bool:
        """Tell whether these are the very objects that were copied, in their places."""
        return vectors is self.vectors or _are_same(vectors, self.vectors)

    def of(self, name: str) -> list[int]:
        """Return all places of a vector."""
        return [self.places[name], *self.more_places.get(name, ())]


class CopiedVectors:
    """An index of a store's vectors.

    Attributes:
        index: inner products of vectors of length one.
        version: that of ``state``, but already the next while the index is being changed.
        state: what the index holds; replaced as a whole.
    """

    def __init__(self, vectors: list[Any], new: list[Any], rows: Rows) -> None:
        self.index = DocumentIndex(IndexSpec(rows.shape[1]))
        self.version = 0
        self._names: dict[int, str] = {}
        self._num_named = 0
        self.state = self._take(vectors, new, rows)

    def follow(self, vectors: list[Any]) -> bool:
        """Copy what is new among these, forget what is gone; False if they do not fit."""
        new = [vector for vector in _distinct(vectors) if id(vector) not in self._names]
        rows = rows_of(new) if new else np.empty((0, self.index.spec.dimension))
        if rows is None or rows.shape[1] != self.index.spec.dimension:
            return False
        self.state = self._take(vectors, new, rows)
        return True

    def _take(self, vectors: list[Any], new: list[Any], rows: Rows) -> Copied:
        self.version += 1  # before the index changes: what searches it now has seen another
        names, places, more = dict[int, str](), dict[str, int](), dict[str, list[int]]()
        for place, vector in enumerate(vectors):
            name = names.get(id(vector))
            if name is None:
                name = names[id(vector)] = self._names.get(id(vector)) or self._new_name()
                places[name] = place
            else:
                more.setdefault(name, []).append(place)
        self.index.delete(set(self._names.values()) - places.keys())
        documents = [IndexedDocument(names[id(vector)], "", _NO_METADATA) for vector in new]
        self.index.add(documents, unit(rows))
        self._names = names
        return Copied(self.version, vectors, places, more)

    def _new_name(self) -> str:
        self._num_named += 1
        return str(self._num_named)


@dataclass(frozen=True, slots=True)
class StoreView:
    """What one search sees of a store, and the copy that it is led by."""

    look: Look
    copied: CopiedVectors
    state: Copied

    def is_current(self, store: Any) -> bool:
        """Tell whether neither the store nor the copy was changed since."""
        if self.copied.version != self.state.version:
            return False
        entries = list(store.store.values())
        return _are_same(list(map(itemgetter("vector"), entries)), self.look.vectors)


class StoreCopy:
    """The copy of one store's vectors, once it pays, kept up to date; used from any thread."""

    def __init__(self) -> None:
        self._lock = RenewedLock()
        self._copied: CopiedVectors | None = None
        #: vectors of which no copy can be made, or which a copy does not tell apart
        self._refused: list[Any] | None = None
        self._num_entries = -1
        self._num_searches = 0
        self._seen: list[Any] | None = None
        self._num_open = 0

    def is_due(self, entries: Mapping[str, Any]) -> bool:
        """Tell whether it pays to look at a store, as far as the number of its entries tells."""
        if len(entries) != self._num_entries:
            self._num_entries = len(entries)
            self._begin_anew()
        return self._num_searches >= SEARCHES

    def look(self, entries: Mapping[str, Any]) -> Look | None:
        """Count a search, and look at the store for it; ``None`` if it is the store's own.

        Raises whatever the entries raise that were put into the store.
        """
        if not self.is_due(entries) and self._num_searches == 0:
            self._num_searches = 1  # what the store holds is of interest from the second one on
            return None
        held = list(entries.values())
        vectors = list(map(itemgetter("vector"), held))
        seen = self._seen
        if seen is not None and not _are_same(vectors, seen):
            self._begin_anew()
        elif seen is not None:
            vectors = seen  # the very list, so that it need not be compared with the copy's
        self._seen = vectors
        if self._num_searches < SEARCHES:
            self._num_searches += 1
            return None
        ids, texts, metadata = (
            list(map(itemgetter(part), held)) for part in ("id", "text", "metadata")
        )
        return Look(vectors, ids, texts, metadata)

    def current(self, look: Look) -> StoreView | None:
        """Return a view by the copy as it is; ``None`` if it is not one of these vectors."""
        copied = self._copied
        state = copied.state if copied is not None else None
        if copied is None or state is None or not state.stands_for(look.vectors):
            return None
        return StoreView(look, copied, state)

    def update(self, look: Look) -> StoreView | None:
        """Make the copy one of these vectors; ``None`` if that cannot be. Takes long."""
        with self._lock.lock:
            view = self.current(look)
            if view is not None:
                return view
            if self._refused is not None and _are_same(look.vectors, self._refused):
                return None
            copied, self._copied = self._copied, None  # for good, should this be interrupted
            if copied is None or not copied.follow(look.vectors):
                copied = _copy(look.vectors)
            self._copied, self._num_open = copied, 0
            self._refused = look.vectors if copied is None else None
            return None if copied is None else StoreView(look, copied, copied.state)

    def forget(self) -> None:
        """Copy everything anew, after as many searches as at first."""
        self._copied = None
        self._begin_anew()

    def note_settled(self, view: StoreView, is_settled: bool) -> None:
        """Give up a copy that hardly ever settles a search, until the store is changed."""
        if is_settled:
            self._num_open = max(0, self._num_open - SETTLED_WORTH)
            return
        self._num_open += 1
        if self._num_open >= MAX_OPEN and self._copied is view.copied:
            self._copied, self._refused = None, view.look.vectors

    def _begin_anew(self) -> None:
        self._num_searches, self._seen = 0, None


_copies: WeakKeyDictionary[Any, StoreCopy] = WeakKeyDictionary()


def copy_of(store: Any) -> StoreCopy:
    """Return the copy of a store, made on first use; it lives as long as the store."""
    found = _copies.get(store)
    return found if found is not None else _copies.setdefault(store, StoreCopy())


def is_large(store: Any) -> bool:
    """Tell whether a store is large enough for an engine; if it is not, its copy is forgotten.

    Asked in every search: of a small store no vector is looked at.
    """
    entries: Any = store.store
    num = len(entries) if isinstance(entries, dict) else 0
    if num >= MIN_ENTRIES and num * _dimension(entries) >= MIN_NUMBERS:
        return True
    if _copies:
        _copies.pop(store, None)
    return False


def _dimension(entries: Mapping[str, Any]) -> int:
    """Return the length of some vector; 0 where there is none, or the entries just change."""
    try:
        return len(next(iter(entries.values()))["vector"])
    except (RuntimeError, StopIteration, LookupError, TypeError):
        return 0


def _copy(vectors: list[Any]) -> CopiedVectors | None:
    distinct = _distinct(vectors)
    rows = rows_of(distinct)
    return None if rows is None else CopiedVectors(vectors, distinct, rows)


def _distinct(vectors: list[Any]) -> list[Any]:
    return list({id(vector): vector for vector in vectors}.values())


def _are_same(vectors: list[Any], others: list[Any]) -> bool:
    return len(vectors) == len(others) and all(map(is_, vectors, others))


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

    None where the store itself is to say: where all vectors found are zero, where scores, which
    are those of the store's own vectors, tell that one was changed in its place, and where they
    do not settle the order.
    """
    state = view.state
    pairs = [(place, hit.score) for hit in hits for place in state.of(hit.document.id)]
    places, copied = [place for place, _ in pairs], [score for _, score in pairs]
    if not any(copied):
        return None
    scores = _cosine(np.array([vector]), [state.vectors[place] for place in places])
    summing = SUMMING[scores.dtype.itemsize]
    if np.abs(scores - copied).max() > ROUNDING + summing:
        copy.forget()
        return None
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    is_all = len(places) == len(state.vectors)
    is_cut_clear = is_all or ranked[k - 1] > copied[-1] + ROUNDING + summing
    is_settled = bool(is_cut_clear and not np.any(-np.diff(ranked[: k + 1]) < summing))
    copy.note_settled(view, is_settled)
    return [_one(view.look, places[at], scores[at]) for at in order[:k]] if is_settled else None


def rows_of(vectors: Sequence[Any]) -> Rows | None:
    """Return vectors ``[n, d]`` as float64; ``None`` unless they are finite and of one length."""
    try:
        rows = np.asarray(vectors)
    except (TypeError, ValueError):
        return None
    if rows.ndim != 2 or not rows.size or rows.dtype.kind not in "fiu" or rows.itemsize < 4:
        return None
    return rows.astype(np.float64, copy=False) if np.isfinite(rows).all() else None


def unit(rows: Rows) -> Rows:
    """Divide vectors by their lengths, in their place; a zero vector stays one."""
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))[:, np.newaxis]
    return np.divide(rows, np.where(lengths > 0, lengths, 1.0), out=rows)


def _cosine(query: Any, vectors: list[Any]) -> Any:
    """Return the cosine with each of these as LangChain computes it."""
    rows = np.array(vectors)
    lengths = np.outer(np.linalg.norm(query, axis=1), np.linalg.norm(rows, axis=1))
    with np.errstate(divide="ignore", invalid="ignore"):
        similarity = np.dot(query, rows.T) / lengths
    similarity[~np.isfinite(similarity)] = 0.0
    return similarity[0]


def _one(look: Look, place: int, score: Any) -> tuple[Any, float, Any]:
    from langchain_core.documents import Document

    found = Document(
        id=look.ids[place], page_content=look.texts[place], metadata=look.metadata[place]
    )
    return found, float(score), look.vectors[place]


def searches_as_known(cls: type, method: Method) -> bool:
    """Tell whether stores of a class are LangChain's ``InMemoryVectorStore`` in how they search.

    Args:
        method: returns a class's method as its program wrote it.
    """
    from langchain_core.vectorstores import InMemoryVectorStore

    if not issubclass(cls, InMemoryVectorStore) or cls.__hash__ is not object.__hash__:
        return False
    return all(method(cls, name) is method(InMemoryVectorStore, name) for name in _ITS_METHODS)


def searches_unchanged(store: Any, cls: type, method: Method) -> bool:
    """Tell whether nothing was put in the place of what a recognised store searches with.

    Looked at in each search that an engine could do: the store's own attributes, its class, which
    is ``cls`` as its program wrote it, and the functions of LangChain's modules.
    """
    from langchain_core.vectorstores import in_memory, utils

    its = vars(in_memory)
    if getattr(utils, "_HAS_SIMSIMD", False) or not _ITS_NAMES.isdisjoint(vars(store)):
        return False
    cosine, diverse = utils._cosine_similarity, utils.maximal_marginal_relevance
    if its.get("cosine_similarity") is not cosine or not _is_from(utils, cosine):
        return False
    if its.get("maximal_marginal_relevance") is not diverse or not _is_from(utils, diverse):
        return False
    return all(_is_from(in_memory, method(cls, name)) for name in _ITS_METHODS)


def _is_from(module: Any, function: object) -> bool:
    """Tell whether a function was written in a module; a wrapper was written in its own."""
    return getattr(function, "__globals__", None) is vars(module)
