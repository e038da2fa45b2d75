"""A knowledge graph held in memory, edited from any thread."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rag_accel.engine_api import Document
from rag_accel.engines.knowledge.changes import Edits, GraphBase, Vector, base_of, ends_of
from rag_accel.engines.knowledge.files import StoredGraph, read_graph, write_graph
from rag_accel.engines.knowledge.names import Triple
from rag_accel.engines.knowledge.vectors import EntityVectors, as_rows, bad_vectors, unit
from rag_accel.engines.knowledge.version import GraphVersion
from rag_accel.errors import ClosedError, ConfigError, GraphLinkError, GraphMergeError
from rag_accel.system.forks import at_fork

if TYPE_CHECKING:
    from rag_accel.engines.knowledge.engine import KnowledgeEngine

_logger = logging.getLogger(__name__)

#: Edits that begin a merge, or the part of the graph that they must be if that is more.
_MERGE_AFTER, _MERGE_PART = 1024, 256
#: Times as many while there are no requests: a graph that is being filled is not merged all the
#: time.
_UNASKED = 64
#: Times as many as began a failed merge; from then on an edit merges them before it is made.
_FAILED = 4
#: Edits that are more than this part of the graph are merged at once, by the thread that asks.
_AT_ONCE = 0.5

EmbedTexts = Callable[[list[str]], Any]

#: How far two vectors of one text by one model may be from each other, of length 1: half precision
#: and the other texts of a batch come to some thousandths.
_SAME_MODEL = 0.05


class MemoryGraph:
    """Triples ``(head, relation, tail)`` in memory, found through a compressed adjacency.

    Every change makes a new version for requests that begin later; running ones keep theirs. An
    edit takes no longer in a large graph: edits are kept over a sorted graph, and a background
    thread merges them into a new one. A failed merge is logged and tried again, until there are
    four times as many edits. Names may hold any character.
    Thread-safe. Give it as ``Accelerator(graph=...)``.

    Args:
        triples: the first ones; one that is there already is not stored twice.
        texts: texts of entities, by name.
        merge_after: edits (triples, texts and vectors) that are kept before they are merged, 64
            times as many while nobody asks; None is 1024, or a 256th of the graph if that is more.

    Raises:
        ConfigError: on something that is no triple of texts.
    """

    def __init__(
        self,
        triples: Iterable[Sequence[str]] = (),
        texts: Mapping[str, str] | None = None,
        *,
        merge_after: int | None = None,
    ) -> None:
        if merge_after is not None and (type(merge_after) is not int or merge_after < 1):
            raise ConfigError(
                "a knowledge graph cannot merge its edits so",
                where="merge_after",
                found=repr(merge_after),
                valid="a whole number from 1 on, or None",
            )
        self._edits = Edits(dict.fromkeys(map(_triple, triples), True), dict(texts or {}))
        self._merge_after = merge_after
        #: what an edit holds, and nothing that takes longer; a fork waits for it
        self._lock = threading.Lock()
        #: what making a version holds, taken before ``_lock`` and never in it
        self._building = threading.Lock()
        self._base = GraphBase()
        self._view: GraphVersion | None = None
        self._number = self._merges = 0
        self._is_asked = self._is_closed = False
        #: the thread that merges; it ends where nothing is left to merge
        self._thread: threading.Thread | None = None
        #: edits that began the first merge that failed since one did not, 0 if none
        self._failed_at = 0
        self._model = ""
        #: a text and the vector that ``embed`` was last given for it
        self._sample: tuple[str, NDArray[np.float32]] | None = None
        _graphs[id(self)] = self

    def __len__(self) -> int:
        return 0 if self._is_closed else self.view().num_triples

    @property
    def version(self) -> int:
        """Return how often it was changed."""
        return self._number

    @property
    def merges(self) -> int:
        """Return how often edits were merged into the sorted graph."""
        return self._merges

    def triples(self) -> Iterator[Triple]:
        """Yield all triples of the present version, in the order of their names."""
        return self.view().merged().triples()

    def add(
        self, triples: Iterable[Sequence[str]] = (), texts: Mapping[str, str] | None = None
    ) -> None:
        """Add triples, and texts of entities; all of them or, on an error, none.

        Raises:
            ConfigError: on something that is no triple of texts.
            GraphMergeError: if merges fail, and edits that wait for one have become too many.
        """
        added, told = dict.fromkeys(map(_triple, triples), True), dict(texts or {})
        self._make_room()
        with self._lock:
            self._change()
            self._drop_vectors(name for name, text in told.items() if self._text(name) != text)
            self._edits.triples.update(added)
            self._edits.texts.update(told)
            self._merge_if_many()

    def remove(self, triples: Iterable[Sequence[str]] = (), entities: Iterable[str] = ()) -> None:
        """Remove triples, and entities with all their triples; unknown ones are ignored.

        An entity without a triple and a text is not there any more, and loses its vector.

        Raises:
            ConfigError: on something that is no triple of texts; then nothing is removed.
            GraphMergeError: as of ``add``; then nothing is removed either.
        """
        gone, dropped = set(entities), dict.fromkeys(map(_triple, triples), False)
        self._make_room()
        with self._lock:
            self._change()
            if gone:
                dropped |= dict.fromkeys(self._edges(gone), False)
            self._edits.triples.update(dropped)
            self._edits.texts.update({name: None for name in gone if self._text(name) is not None})
            if self._has_vectors():
                self._drop_vectors(self._absent({*gone, *ends_of(dropped)}))
            self._merge_if_many()

    def replace(
        self, triples: Iterable[Sequence[str]], texts: Mapping[str, str] | None = None
    ) -> None:
        """Hold these triples and texts instead of all there were, as one change.

        Vectors stay of entities that are still there with the text they had.

        Raises:
            ConfigError: on something that is no triple of texts.
        """
        held, told = dict.fromkeys(map(_triple, triples), True), dict(texts or {})
        there = {*ends_of(held), *told}
        with self._lock:
            kept: dict[str, Vector | None] = {
                name: row
                for name, row in self._vectors().items()
                if name in there and self._text(name) == told.get(name)
            }
            self._reset(Edits(held, dict(told), kept))

    def view(self) -> GraphVersion:
        """Return the present version; it takes as long as there are edits since the last merge.

        The first call for a new graph sorts it, and the first after so many edits that they are
        half of it.

        Raises:
            ClosedError: after ``close``.
        """
        with self._lock:
            self._require_open()
            self._is_asked = True
            if self._view is not None:
                return self._view
        with self._building:
            version, _ = self._made()
        with self._lock:
            self._merge_if_many()
        return version

    def unembedded(self) -> tuple[Document, ...]:
        """Return the entities without a vector, their texts behind their names, for an ingestion.

        An ingestion stage whose engine is the graph's embeds them on the stage's embedder.
        """
        view = self.view()
        return tuple(
            Document(name, _document(name, view.text(name))) for name in view.without_vector()
        )

    def embed(self, embed: EmbedTexts, model: str = "", batch: int = 256) -> int:
        """Give every entity that lacks one a vector, for a search by vector; return how many.

        An entity whose text changes meanwhile, or that is removed, gets none.

        Args:
            embed: from texts to one vector each, such as ``SentenceTransformer.encode``.
            model: names the model; vectors of another one are replaced. Where none is named, a text
                that was embedded before is embedded once more, and compared.
            batch: texts a call.

        Raises:
            GraphLinkError: if no model is named and ``embed`` is another one than before; if what
                it returns cannot be vectors; if entities are embedded by another model meanwhile.
            GraphMergeError: as of ``add``.
        """
        with self._lock:
            if model != self._model:
                self._model, self._sample = model, None
                self._change()
                self._edits.vectors.clear()
                self._base = replace(self._base, vectors=EntityVectors())
            sample = None if model or not self._has_vectors() else self._sample
        if sample is not None:
            _require_same_model(sample, embed([sample[0]]))
        waiting = iter(self.unembedded())
        num = 0
        while some := tuple(islice(waiting, batch)):
            texts = [document.text for document in some]
            rows = as_rows(embed(texts), len(some))
            num += self._keep([document.id for document in some], rows, texts, model)
            self._sample = texts[0], unit(rows[:1])[0]
        return num

    def set_vectors(
        self, names: Sequence[str], vectors: Any, texts: Sequence[str] | None = None
    ) -> int:
        """Keep the vectors of entities; return how many were kept.

        Args:
            names: of the entities; one that is not there gets none.
            vectors: ``[len(names), dim], float32``.
            texts: the text of each vector, as returned by ``unembedded``; an entity whose text has
                changed since gets none. None skips this check.

        Raises:
            GraphLinkError: if they are no finite numbers, too few or many, of no component, or of
                another dimension than those there are.
            GraphMergeError: as of ``add``; then none is kept.
        """
        return self._keep(names, as_rows(vectors, len(names)), texts, None)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write triples and texts to a file, in one step, with mode 0600; vectors are not stored.

        Triples stand in it in the order of their names.

        Raises:
            OSError: the file cannot be written.
        """
        base = self.view().merged()
        write_graph(StoredGraph(tuple(base.triples()), base.texts), path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> MemoryGraph:
        """Read what ``save`` wrote.

        Raises:
            GraphFileError: the file is damaged, foreign or of another version.
            OSError: the file cannot be read.
        """
        held = read_graph(path)
        return cls(held.triples, held.texts)

    def as_engine(self) -> KnowledgeEngine:
        """Return an engine over this graph."""
        from rag_accel.engines.knowledge.engine import KnowledgeEngine

        return KnowledgeEngine(self)

    def close(self) -> None:
        """Free everything; a later ``view`` raises ClosedError."""
        with self._lock:
            self._is_closed = True
            self._reset(Edits())

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the parts of a copy: everything but threads and versions."""
        base = self.view().merged()
        vectors = _named_vectors(base)
        state = {"_model": self._model, "_sample": self._sample}
        held = tuple(base.triples()), dict(base.texts), self._merge_after
        return _copied, (type(self), *held, vectors, state)

    def _keep(
        self,
        names: Sequence[str],
        rows: NDArray[np.float32],
        texts: Sequence[str] | None,
        model: str | None,
    ) -> int:
        """Keep vectors of entities that are there, with the text they were made of."""
        self._make_room()
        with self._lock:
            if model is not None and model != self._model:
                raise bad_vectors(f"those of {self._model!r} since", f"those of {model!r}")
            known = self._dimension()
            if len(rows) and known is not None and known != rows.shape[1]:
                raise bad_vectors(f"dimension {rows.shape[1]}", f"dimension {known}")
            absent = self._absent(names)
            told = texts or [_document(name, self._text(name)) for name in names]
            kept = {
                name: row
                for name, row, text in zip(names, unit(rows), told, strict=True)
                if name not in absent and text == _document(name, self._text(name))
            }
            self._change()
            self._edits.vectors.update(kept)
            self._merge_if_many()
        return len(kept)

    def _make_room(self) -> None:
        """Merge the edits in this thread if they are too many because their merges fail.

        Raises:
            GraphMergeError: if that fails too.
        """
        with self._lock:
            if not self._failed_at or len(self._edits) < _FAILED * self._failed_at:
                return
        try:
            with self._building:
                version, edits = self._made()
            self._install(version, edits, version.merged())
        except ClosedError:
            raise
        except Exception as error:
            raise GraphMergeError(
                "the edits of a knowledge graph cannot be merged, and are too many to take more",
                found=f"{len(self._edits)} edits; {type(error).__name__}: {error}",
                hint="no edit is lost; one that comes later tries again",
            ) from error

    def _change(self) -> None:
        """Begin another version; called before the change, so that nothing is missed."""
        self._number += 1
        self._view = None

    def _reset(self, edits: Edits) -> None:
        """Hold edits alone, over nothing."""
        self._change()
        self._base, self._edits = GraphBase(), edits
        self._failed_at = 0

    def _text(self, name: str) -> str | None:
        texts = self._edits.texts
        return texts[name] if name in texts else self._base.texts.get(name)

    def _edges(self, names: Collection[str]) -> Iterator[Triple]:
        """Yield all triples of entities, with some that are not there any more."""
        for name in names:
            yield from self._base.edges(name)
        for triple in self._edits.triples:
            if triple[0] in names or triple[2] in names:
                yield triple

    def _absent(self, names: Iterable[str]) -> set[str]:
        """Return those of names that are of no entity: without a triple and a text."""
        left = {name for name in names if self._text(name) is None}
        if not left:
            return left
        triples = self._edits.triples
        left -= ends_of(triple for triple, is_there in triples.items() if is_there)
        return {
            name
            for name in left
            if not any(triples.get(triple, True) for triple in self._base.edges(name))
        }

    def _has_vectors(self) -> bool:
        """Tell whether there may be a vector."""
        return bool(len(self._base.vectors) or self._edits.vectors)

    def _vectors(self) -> dict[str, NDArray[np.float32]]:
        found = {**_named_vectors(self._base), **self._edits.vectors}
        return {name: row for name, row in found.items() if row is not None}

    def _dimension(self) -> int | None:
        """Return the number of components of the vectors there are, None where there are none."""
        fresh = next((row for row in self._edits.vectors.values() if row is not None), None)
        if fresh is not None:
            return len(fresh)
        hidden = sum(self._base.vector(name) is not None for name in self._edits.vectors)
        return self._base.vectors.rows.shape[1] if hidden < len(self._base.vectors) else None

    def _drop_vectors(self, names: Iterable[str]) -> None:
        vectors = self._edits.vectors
        for name in names:
            if vectors.get(name) is not None or self._base.vector(name) is not None:
                vectors[name] = None

    def _made(self) -> tuple[GraphVersion, Edits]:
        """Return the present version and the edits in it; merged at once where they are most."""
        with self._lock:
            self._require_open()
            number, base, edits = self._number, self._base, self._edits.copy()
            if self._view is not None:
                return self._view, edits
        is_most = len(edits) > base.size * _AT_ONCE
        is_new = is_most and not base.size
        version = GraphVersion(number, base, Edits() if is_new else edits)
        if is_most:
            base = base_of(edits) if is_new else version.merged()
            self._install(version, edits, base)
            version, edits = GraphVersion(number, base, Edits()), Edits()
        with self._lock:
            if self._number == number and self._base is version.base:
                self._view = version
        return version, edits

    def _install(self, version: GraphVersion, edits: Edits, base: GraphBase) -> None:
        """Put a merged version in the place of the base it was made of, if that is there still."""
        with self._lock:
            if self._is_closed or self._base is not version.base:
                return
            self._base = base
            self._merges += 1
            self._failed_at = 0
            is_latest = self._number == version.version
            self._edits = Edits() if is_latest else self._edits.since(edits)
            self._view = None

    def _are_many(self) -> bool:
        most = self._merge_after or max(_MERGE_AFTER, self._base.size // _MERGE_PART)
        return len(self._edits) >= most * (1 if self._is_asked else _UNASKED)

    def _merge_if_many(self) -> None:
        """Let a thread merge the edits if they are many and none does; in a forked child none."""
        is_running = self._thread is not None and self._thread.is_alive()
        if is_running or not self._are_many():
            return
        thread = threading.Thread(
            target=_merge,
            args=(weakref.ref(self), len(self._edits)),
            name="rag-accel-graph-merge",
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError:  # no more threads, or the interpreter ends: the next edit tries again
            _logger.warning("a knowledge graph's edits are not merged: no thread", exc_info=True)
            self._failed_at = self._failed_at or len(self._edits)
        else:
            self._thread = thread

    def _next_merge(self) -> tuple[GraphVersion, Edits] | None:
        """Return a version with the edits in it; None where nothing is left to merge."""
        with self._lock:
            if self._is_closed or not self._are_many():
                self._thread = None
                return None
            self._is_asked = False
        with self._building:
            try:
                return self._made()
            except ClosedError:
                return None

    def _require_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the knowledge graph is closed")


def _merge(reference: weakref.ref[MemoryGraph], num: int) -> None:
    """Merge ``num`` edits of a graph, and those that come meanwhile if they are many.

    A graph that nobody holds any more is not kept for it.
    """
    try:
        while (graph := reference()) is not None and (work := graph._next_merge()) is not None:
            del graph
            version, edits = work
            base = version.merged()
            graph = reference()
            if graph is None:
                return
            graph._install(version, edits, base)
            del graph, work, version, edits, base
    except BaseException:
        # Nothing is lost: the edits stay over the base that there was.
        graph = reference()
        if graph is not None:
            graph._failed_at = graph._failed_at or num
        _logger.exception(
            "a knowledge graph's edits could not be merged; the next edit tries again"
        )


_graphs = weakref.WeakValueDictionary[int, MemoryGraph]()
_forking = threading.local()


def _before_fork() -> None:
    """Wait until no edit is under way, so that a child has no half of one."""
    held: list[threading.Lock] = []
    _forking.held = held
    for graph in list(_graphs.values()):
        graph._lock.acquire()
        held.append(graph._lock)


def _release() -> None:
    held: list[threading.Lock] = getattr(_forking, "held", [])
    while held:
        held.pop().release()


def _after_in_child() -> None:
    _release()
    for graph in list(_graphs.values()):
        graph._building = threading.Lock()


at_fork(before=_before_fork, after_in_parent=_release, after_in_child=_after_in_child)


def _named_vectors(base: GraphBase) -> dict[str, Vector | None]:
    names = base.entities.names
    return {
        names[entity]: base.vectors.rows[place]
        for place, entity in enumerate(base.vectors.ids.tolist())
    }


def _copied(
    kind: type[MemoryGraph],
    triples: Sequence[Triple],
    texts: Mapping[str, str],
    merge_after: int | None,
    vectors: Mapping[str, Vector | None],
    state: Mapping[str, Any],
) -> MemoryGraph:
    graph = kind(triples, texts, merge_after=merge_after)
    graph._edits.vectors.update(vectors)
    vars(graph).update(state)
    return graph


def _document(name: str, text: str | None) -> str:
    return f"{name}: {text}" if text else name


def _triple(value: Sequence[str]) -> Triple:
    if not isinstance(value, str) and isinstance(value, Sequence) and len(value) == 3:
        head, relation, tail = value
        if isinstance(head, str) and isinstance(relation, str) and isinstance(tail, str):
            return head, relation, tail
    raise ConfigError(
        "this is no triple of a knowledge graph",
        found=repr(value)[:80],
        valid="(head, relation, tail), three texts",
    )


def _require_same_model(sample: tuple[str, NDArray[np.float32]], vectors: Any) -> None:
    text, before = sample
    again = unit(as_rows(vectors, 1))[0]
    if again.shape != before.shape or np.linalg.norm(again - before) > _SAME_MODEL:
        raise GraphLinkError(
            "entities were embedded by another model, and vectors of two are not comparable",
            where=f"the text {text[:60]!r}",
            found="another vector than before",
            valid="the model that embedded the others",
            hint="MemoryGraph.embed(..., model='its name') replaces all vectors",
        )
