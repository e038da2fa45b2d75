"""A knowledge graph held in memory, edited from any thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rag_accel.engine_api import Document
from rag_accel.engines.knowledge.files import StoredGraph, read_graph, write_graph
from rag_accel.engines.knowledge.interned import NOTHING, InternedTriples, Triple
from rag_accel.engines.knowledge.version import GraphVersion
from rag_accel.errors import ClosedError, ConfigError, GraphLinkError

if TYPE_CHECKING:
    from rag_accel.engines.knowledge.engine import KnowledgeEngine

EmbedTexts = Callable[[list[str]], Sequence[Any]]


class MemoryGraph:
    """Triples ``(head, relation, tail)`` in memory, found through a compressed adjacency.

    Every change makes a new version, which requests that begin later see; those under way keep
    theirs. Names may hold any character. Thread-safe. Give it as ``Accelerator(graph=...)``.

    Args:
        triples: the first ones; one that is there already is not stored twice.
        texts: what is told of entities, by name.

    Raises:
        ConfigError: on something that is no triple of texts.
    """

    def __init__(
        self, triples: Iterable[Sequence[str]] = (), texts: Mapping[str, str] | None = None
    ) -> None:
        self._lock = threading.Lock()
        self._triples = dict.fromkeys(map(_triple, triples))
        #: as of the last view, and what was added and removed since
        self._interned: InternedTriples = NOTHING
        self._added = dict(self._triples)
        self._removed: dict[Triple, None] = {}
        self._texts = dict(texts or {})
        self._vectors: dict[str, NDArray[np.float32]] = {}
        self._model = ""
        self._number = 0
        self._view: GraphVersion | None = None
        self._is_closed = False

    def __len__(self) -> int:
        """Return the number of triples."""
        return len(self._triples)

    @property
    def version(self) -> int:
        """Return how often it was changed."""
        return self._number

    def add(
        self, triples: Iterable[Sequence[str]] = (), texts: Mapping[str, str] | None = None
    ) -> None:
        """Add triples, and texts of entities; all of them or, on an error, none.

        Raises:
            ConfigError: on something that is no triple of texts.
        """
        added = dict.fromkeys(map(_triple, triples))
        with self._lock:
            for one in added:
                self._put(one)
            for name, text in (texts or {}).items():
                if self._texts.get(name) != text:
                    self._vectors.pop(name, None)
                self._texts[name] = text
            self._changed()

    def remove(self, triples: Iterable[Sequence[str]] = (), entities: Iterable[str] = ()) -> None:
        """Remove triples, and entities with all their triples; unknown ones are ignored."""
        gone = set(entities)
        with self._lock:
            for one in triples:
                self._drop(_triple(one))
            for name in gone:
                self._texts.pop(name, None)
                self._vectors.pop(name, None)
            if gone:
                for one in [one for one in self._triples if one[0] in gone or one[2] in gone]:
                    self._drop(one)
            self._changed()

    def replace(
        self, triples: Iterable[Sequence[str]], texts: Mapping[str, str] | None = None
    ) -> None:
        """Hold these triples and texts instead of all there were, as one change.

        Vectors stay of entities that are still there with the text they had.

        Raises:
            ConfigError: on something that is no triple of texts.
        """
        held, told = dict.fromkeys(map(_triple, triples)), dict(texts or {})
        with self._lock:
            ends = {end for one in held for end in (one[0], one[2])} | told.keys()
            self._vectors = {
                name: vector
                for name, vector in self._vectors.items()
                if name in ends and self._texts.get(name) == told.get(name)
            }
            self._triples, self._texts = held, told
            self._interned, self._added, self._removed = NOTHING, dict(held), {}
            self._changed()

    def view(self) -> GraphVersion:
        """Return the present version; the first call after a change builds it."""
        with self._lock:
            if self._is_closed:
                raise ClosedError("the knowledge graph is closed")
            if self._view is None:
                self._interned = self._interned.edited(self._added, self._removed, self._texts)
                self._added, self._removed = {}, {}
                self._view = GraphVersion(self._number, self._interned, self._texts, self._vectors)
            return self._view

    def unembedded(self) -> tuple[Document, ...]:
        """Return the entities without a vector, their texts behind their names, for an ingestion.

        An ingestion stage whose engine is the graph's embeds them on the stage's embedder.
        """
        view = self.view()
        with self._lock:
            return tuple(
                Document(name, f"{name}: {text}" if (text := self._texts.get(name, "")) else name)
                for name in view.names
                if name not in self._vectors
            )

    def embed(self, embed: EmbedTexts, model: str = "", batch: int = 256) -> int:
        """Give every entity that lacks one a vector, for a search by vector; return how many.

        Args:
            embed: from texts to one vector each, such as ``SentenceTransformer.encode``.
            model: names the model; vectors that another one made are made anew.
            batch: texts a call.
        """
        with self._lock:
            if model != self._model:
                self._vectors, self._model = {}, model
                self._changed()
        waiting = iter(self.unembedded())
        num = 0
        while some := tuple(islice(waiting, batch)):
            vectors = embed([one.text for one in some])
            self.set_vectors([one.id for one in some], vectors)
            num += len(some)
        return num

    def set_vectors(self, names: Sequence[str], vectors: Any) -> None:
        """Keep the vectors of entities.

        Args:
            names: of the entities.
            vectors: ``[len(names), dim], float32``.

        Raises:
            GraphLinkError: if they are no finite numbers, too few or many, or of another dimension
                than those there are.
        """
        rows = np.array(vectors, dtype=np.float32)
        if rows.ndim != 2 or len(rows) != len(names) or not np.isfinite(rows).all():
            raise _bad_vectors(f"shape {rows.shape}", f"one finite vector for {len(names)} names")
        with self._lock:
            known = next(iter(self._vectors.values()), None)
            if len(rows) and known is not None and len(known) != rows.shape[1]:
                raise _bad_vectors(f"dimension {rows.shape[1]}", f"dimension {len(known)}")
            self._vectors |= zip(names, rows, strict=True)
            self._changed()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write triples and texts to a file, in one step, with mode 0600; vectors are not stored.

        Raises:
            OSError: the file cannot be written.
        """
        with self._lock:
            held = StoredGraph(tuple(self._triples), dict(self._texts))
        write_graph(held, path)

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
            self._view = None
            self._triples, self._texts, self._vectors = {}, {}, {}
            self._interned, self._added, self._removed = NOTHING, {}, {}

    def _put(self, triple: Triple) -> None:
        if triple in self._triples:
            return
        self._triples[triple] = None
        if triple in self._removed:
            del self._removed[triple]
        else:
            self._added[triple] = None

    def _drop(self, triple: Triple) -> None:
        if triple not in self._triples:
            return
        del self._triples[triple]
        if triple in self._added:
            del self._added[triple]
        else:
            self._removed[triple] = None

    def _changed(self) -> None:
        self._number += 1
        self._view = None


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


def _bad_vectors(found: str, valid: str) -> GraphLinkError:
    return GraphLinkError("these cannot be the vectors of entities", found=found, valid=valid)
