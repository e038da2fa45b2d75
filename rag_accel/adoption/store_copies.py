"""Local vector stores, searched in a copy of their vectors with the same results.

The store stays the truth: what is found and the vectors that decide are read from it in every
search; the copy only says which few of them can be among the nearest. It is made of stores that
are large and stay as they are for some searches; any other search is the store's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from rag_accel.engine_api import Document, ScoredDocument, SearchQuery
from rag_accel.engines.retrieval import DocumentIndex, IndexSpec
from rag_accel.system.locks import RenewedLock
from rag_accel.system.weak_maps import WeakIdDict

_NO_METADATA: Mapping[str, Any] = MappingProxyType({})

Rows = npt.NDArray[np.float64]
#: returns vectors ``[n, d]`` as new float64; None where a copy of them is of no use
RowsOf = Callable[[list[Any]], Rows | None]


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
        return vectors is self.vectors or are_same(vectors, self.vectors)

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

    def __init__(
        self,
        vectors: list[Any],
        new: list[Any],
        rows: Rows,
        rows_of: RowsOf,
    ) -> None:
        self._rows_of = rows_of
        self.index = DocumentIndex(IndexSpec(rows.shape[1]))
        self.version = 0
        self._names: dict[int, str] = {}
        self._num_named = 0
        self.state = self._take(vectors, new, rows)

    def follow(self, vectors: list[Any]) -> bool:
        """Copy what is new among these, forget what is gone; False if they do not fit."""
        new = [vector for vector in _distinct(vectors) if id(vector) not in self._names]
        rows = self._rows_of(new) if new else np.empty((0, self.index.spec.dimension))
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
        documents = [Document(names[id(vector)], "", _NO_METADATA) for vector in new]
        self.index.add(documents, unit(rows))
        self._names = names
        return Copied(self.version, vectors, places, more)

    def _new_name(self) -> str:
        self._num_named += 1
        return str(self._num_named)


def copy_vectors(vectors: list[Any], rows_of: RowsOf) -> CopiedVectors | None:
    """Copy vectors; None where that is of no use."""
    distinct = _distinct(vectors)
    rows = rows_of(distinct)
    return None if rows is None else CopiedVectors(vectors, distinct, rows, rows_of)


def _distinct(vectors: list[Any]) -> list[Any]:
    return list({id(vector): vector for vector in vectors}.values())


def are_same(vectors: list[Any], others: list[Any]) -> bool:
    """Tell whether these are the same objects, in the same places."""
    return len(vectors) == len(others) and all(map(is_, vectors, others))


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


@dataclass(frozen=True, slots=True)
class StoreKind:
    """The functions that read stores of one kind, and make results of nearest vectors.

    Args:
        owner: returns the object with which a copy of a store's vectors lives and goes.
        entries: returns a store's entries by their ids; anything but a dict is not copied.
        held: returns what is read of a dict of entries: its values, or its items.
        vector: returns the vector of one of these.
        parts: returns what else of these results are made of.
        rows: returns vectors ``[n, d]`` as new float64; None if the store sees something else in
            them. As in ``rows_of``, which it may be.
        scores: returns the score ``[n]`` of each of some vectors for another, as the store does.
        found: returns what the store finds, given the places of the nearest, best first, and their
            scores.
    """

    owner: Callable[[Any], Any]
    entries: Callable[[Any], Any]
    held: Callable[[Any], Iterable[Any]]
    vector: Callable[[Any], Any]
    parts: Callable[[list[Any]], Any]
    rows: Callable[[Sequence[Any]], Rows | None]
    scores: Callable[[Any, list[Any]], npt.NDArray[Any]]
    found: Callable[[Look, Sequence[int], npt.NDArray[Any]], Any]


@dataclass(frozen=True, slots=True)
class Look:
    """A snapshot of a store, in the store's order: vectors, and the kind's parts."""

    vectors: list[Any]
    parts: Any


@dataclass(frozen=True, slots=True)
class StoreView:
    """A store as one search sees it, and the copy that leads the search."""

    kind: StoreKind
    look: Look
    copied: CopiedVectors
    state: Copied

    def is_current(self, store: Any) -> bool:
        """Tell whether neither the store nor the copy was changed since."""
        if self.copied.version != self.state.version:
            return False
        kind = self.kind
        held = list(kind.held(kind.entries(store)))
        return are_same(list(map(kind.vector, held)), self.look.vectors)


class StoreCopy:
    """The copy of one store's vectors, once it pays, kept up to date; used from any thread."""

    def __init__(self, kind: StoreKind) -> None:
        self._kind = kind
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
        held = list(self._kind.held(entries))
        vectors = list(map(self._kind.vector, held))
        seen = self._seen
        if seen is not None and not are_same(vectors, seen):
            self._begin_anew()
        elif seen is not None:
            vectors = seen  # the very list, so that it need not be compared with the copy's
        self._seen = vectors
        if self._num_searches < SEARCHES:
            self._num_searches += 1
            return None
        return Look(vectors, self._kind.parts(held))

    def current(self, look: Look) -> StoreView | None:
        """Return a view by the copy as it is; ``None`` if it is not one of these vectors."""
        copied = self._copied
        state = copied.state if copied is not None else None
        if copied is None or state is None or not state.stands_for(look.vectors):
            return None
        return StoreView(self._kind, look, copied, state)

    def update(self, look: Look) -> StoreView | None:
        """Make the copy one of these vectors; ``None`` if that cannot be. Takes long."""
        with self._lock.lock:
            view = self.current(look)
            if view is not None:
                return view
            if self._refused is not None and are_same(look.vectors, self._refused):
                return None
            copied, self._copied = self._copied, None  # for good, should this be interrupted
            if copied is None or not copied.follow(look.vectors):
                copied = copy_vectors(look.vectors, self._kind.rows)
            self._copied, self._num_open = copied, 0
            self._refused = look.vectors if copied is None else None
            return None if copied is None else StoreView(self._kind, look, copied, copied.state)

    def forget(self) -> None:
        """Start over: copy everything again once enough searches have come."""
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


_copies: WeakIdDict[StoreCopy] = WeakIdDict()


def copy_of(kind: StoreKind, store: Any) -> StoreCopy:
    """Return the copy of a store, made on first use; it lives as long as the kind says."""
    owner = kind.owner(store)
    return _copies.get(owner) or _copies.add(owner, StoreCopy(kind))


def is_large(kind: StoreKind, store: Any) -> bool:
    """Tell whether a store is large enough for an engine; if it is not, its copy is forgotten.

    Asked in every search: of a small store no vector is looked at.
    """
    entries = kind.entries(store)
    num = len(entries) if isinstance(entries, dict) else 0
    if num >= MIN_ENTRIES and num * _dimension(kind, entries) >= MIN_NUMBERS:
        return True
    _copies.forget(kind.owner(store))
    return False


def size_obstacle(kind: StoreKind, store: Any) -> str | None:
    """Return why no engine searches a store as it is; None of a large one."""
    if is_large(kind, store):
        return None
    entries = kind.entries(store)
    if not isinstance(entries, dict):
        return "what it holds is no dict of vectors"
    size = f"{len(entries)} x {_dimension(kind, entries)}"
    return f"small: {size} numbers, searched from {MIN_NUMBERS:,} on"


#: What acts on stores in memory, and what switches it off.
COPIED = "searches of all requests share steps over a copy of its vectors"
COPIED_UNLESS = (
    f"fewer than {MIN_NUMBERS:,} numbers in its vectors",
    f"a change within its last {SEARCHES} searches",
    "a filter in the search",
    "a replaced method",
)


def _dimension(kind: StoreKind, entries: Any) -> int:
    """Return the length of some vector; 0 where there is none, or the entries just change."""
    try:
        return len(kind.vector(next(iter(kind.held(entries)))))
    except (RuntimeError, StopIteration, LookupError, TypeError):
        return 0


def search_query(view: StoreView, vector: Any, k: Any) -> SearchQuery | None:
    """Return what to ask the index for; ``None`` if the question is not an ordinary one."""
    if type(k) is not int or k < 1:
        return None
    query = view.kind.rows([vector])
    if query is None or query.shape[1] != view.copied.index.spec.dimension or not query.any():
        return None
    return SearchQuery(unit(query)[0], k + MARGIN)


def found_by(
    view: StoreView, vector: Any, k: int, hits: Sequence[ScoredDocument], copy: StoreCopy
) -> Any:
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
    scores = view.kind.scores(vector, [state.vectors[place] for place in places])
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
    if not is_settled:
        return None
    nearest = order[:k]
    return view.kind.found(view.look, [places[at] for at in nearest], scores[nearest])
