"""A knowledge graph held in memory, edited from any thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rag_accel.engine_api import Document
from rag_accel.engines.knowledge.edits import Edits
from rag_accel.engines.knowledge.files import StoredGraph, read_graph, write_graph
from rag_accel.engines.knowledge.interned import Triple
from rag_accel.engines.knowledge.store import GraphStore
from rag_accel.engines.knowledge.vectors import as_rows, bad_vectors, unit
from rag_accel.engines.knowledge.version import GraphVersion
from rag_accel.errors import ConfigError, GraphLinkError

if TYPE_CHECKING:
    from rag_accel.engines.knowledge.engine import KnowledgeEngine

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
        edits = Edits(dict.fromkeys(map(_triple, triples), True), dict(texts or {}))
        self._store = GraphStore(edits, merge_after)
        self._merge_after = merge_after
        self._model = ""
        #: a text and the vector that ``embed`` was last given for it
        self._sample: tuple[str, NDArray[np.float32]] | None = None

    def __len__(self) -> int:
        return 0 if self._store.is_closed else self.view().num_triples

    @property
    def version(self) -> int:
        """Return how often it was changed."""
        return self._store.number

    @property
    def merges(self) -> int:
        """Return how often edits were merged into the sorted graph."""
        return self._store.merges

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
        store = self._store
        store.make_room()
        with store.lock:
            store.change()
            store.drop_vectors(name for name, text in told.items() if store.text(name) != text)
            store.edits.triples.update(added)
            store.edits.texts.update(told)
            store.merge_if_many()

    def remove(self, triples: Iterable[Sequence[str]] = (), entities: Iterable[str] = ()) -> None:
        """Remove triples, and entities with all their triples; unknown ones are ignored.

        An entity without a triple and a text is not there any more, and loses its vector.

        Raises:
            ConfigError: on something that is no triple of texts; then nothing is removed.
            GraphMergeError: as of ``add``; then nothing is removed either.
        """
        gone, dropped = set(entities), dict.fromkeys(map(_triple, triples), False)
        store = self._store
        store.make_room()
        with store.lock:
            store.change()
            if gone:
                dropped |= dict.fromkeys(store.edges(gone), False)
            store.edits.triples.update(dropped)
            store.edits.texts.update({name: None for name in gone if store.text(name) is not None})
            if store.has_vectors():
                store.drop_vectors(store.absent({*gone, *_ends(dropped)}))
            store.merge_if_many()

    def replace(
        self, triples: Iterable[Sequence[str]], texts: Mapping[str, str] | None = None
    ) -> None:
        """Hold these triples and texts instead of all there were, as one change.

        Vectors stay of entities that are still there with the text they had.

        Raises:
            ConfigError: on something that is no triple of texts.
        """
        held, told = dict.fromkeys(map(_triple, triples), True), dict(texts or {})
        there = {*_ends(held), *told}
        store = self._store
        with store.lock:
            kept = {
                name: row
                for name, row in store.vectors().items()
                if name in there and store.text(name) == told.get(name)
            }
            store.reset(Edits(held, dict(told), kept))

    def view(self) -> GraphVersion:
        """Return the present version; it takes as long as there are edits since the last merge.

        The first call for a new graph sorts it, and the first after so many edits that they are
        half of it.
        """
        return self._store.view()

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
        store = self._store
        with store.lock:
            if model != self._model:
                self._model, self._sample = model, None
                store.change()
                store.drop_all_vectors()
            sample = None if model or not store.has_vectors() else self._sample
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
        self._store.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the parts of a copy: everything but threads and versions."""
        base = self.view().merged()
        names = base.entities.table.of(base.vectors.ids)
        vectors = dict(zip(names, base.vectors.rows, strict=True))
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
        store = self._store
        store.make_room()
        with store.lock:
            if model is not None and model != self._model:
                raise bad_vectors(f"those of {self._model!r} since", f"those of {model!r}")
            known = store.dimension()
            if len(rows) and known is not None and known != rows.shape[1]:
                raise bad_vectors(f"dimension {rows.shape[1]}", f"dimension {known}")
            absent = store.absent(names)
            told = texts or [_document(name, store.text(name)) for name in names]
            kept = {
                name: row
                for name, row, text in zip(names, unit(rows), told, strict=True)
                if name not in absent and text == _document(name, store.text(name))
            }
            store.change()
            store.edits.vectors.update(kept)
            store.merge_if_many()
        return len(kept)


def _copied(
    kind: type[MemoryGraph],
    triples: Sequence[Triple],
    texts: Mapping[str, str],
    merge_after: int | None,
    vectors: Mapping[str, NDArray[np.float32]],
    state: Mapping[str, Any],
) -> MemoryGraph:
    graph = kind(triples, texts, merge_after=merge_after)
    graph._store.edits.vectors.update(vectors)
    vars(graph).update(state)
    return graph


def _ends(triples: Iterable[Triple]) -> set[str]:
    return {end for head, _, tail in triples for end in (head, tail)}


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
