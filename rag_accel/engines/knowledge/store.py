"""The state of a graph in memory: a base, the edits over it, and the versions that requests see."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rag_accel.engines.knowledge.base import GraphBase, empty_base
from rag_accel.engines.knowledge.edits import Edits
from rag_accel.engines.knowledge.interned import Triple
from rag_accel.engines.knowledge.merging import MergeThread, follow_forks
from rag_accel.engines.knowledge.vectors import EntityVectors
from rag_accel.engines.knowledge.version import GraphVersion
from rag_accel.errors import ClosedError, GraphMergeError

#: Edits that begin a merge, or the part of the graph that they must be if that is more.
_MERGE_AFTER, _MERGE_PART = 1024, 256
#: Times as many while there are no requests: a graph that is being filled is not merged all the
#: time.
_UNASKED = 64
#: Times as many as began a failed merge; from then on an edit merges them before it is made.
_FAILED = 4
#: Edits that are more than this part of the graph are merged at once, by the thread that asks.
_AT_ONCE = 0.5


class GraphStore:
    """The state of a graph in memory.

    ``edits`` is read and written under ``lock``, which is held no longer than an edit takes: also
    by the callers of the methods from ``change`` to ``merge_if_many``. A version is made under
    ``building``, which is taken before ``lock`` and never in it, by any thread.

    Args:
        edits: the first contents.
        merge_after: edits that are kept before they are merged, or None.
        at_once: the part of the graph that edits must be more than for the thread that asks to
            merge them.
    """

    def __init__(self, edits: Edits, merge_after: int | None, at_once: float = _AT_ONCE) -> None:
        self.lock = threading.Lock()
        self.edits = edits
        self.number = 0
        self.merges = 0
        self._building = threading.Lock()
        self._base = empty_base()
        self._view: GraphVersion | None = None
        self._merge_after, self._at_once = merge_after, at_once
        self._merging = MergeThread()
        self._is_asked = False
        self._is_closed = False
        follow_forks(self)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def view(self) -> GraphVersion:
        """Return a version with every edit that ended before this call.

        Raises:
            ClosedError: after ``close``.
        """
        with self.lock:
            self._require_open()
            self._is_asked = True
            if self._view is not None:
                return self._view
        with self._building:
            version, _ = self._made()
        with self.lock:
            self.merge_if_many()
        return version

    def close(self) -> None:
        """Free everything."""
        with self.lock:
            self._is_closed = True
            self.reset(Edits())

    def make_room(self) -> None:
        """Merge the edits in this thread if they are too many because their merges fail.

        Raises:
            GraphMergeError: if that fails too.
        """
        with self.lock:
            failed_at = self._merging.failed_at
            if not failed_at or len(self.edits) < _FAILED * failed_at:
                return
        try:
            with self._building:
                version, edits = self._made()
            self.install(version, edits, version.merged())
        except ClosedError:
            raise
        except Exception as error:
            raise GraphMergeError(
                "the edits of a knowledge graph cannot be merged, and are too many to take more",
                found=f"{len(self.edits)} edits; {type(error).__name__}: {error}",
                hint="no edit is lost; one that comes later tries again",
            ) from error

    def change(self) -> None:
        """Begin another version; called before the change, so that nothing is missed."""
        self.number += 1
        self._view = None

    def reset(self, edits: Edits) -> None:
        """Hold edits alone, over nothing."""
        self.change()
        self._base, self.edits = empty_base(), edits
        self._merging.failed_at = 0

    def text(self, name: str) -> str | None:
        """Return the text of an entity, None where it has none."""
        texts = self.edits.texts
        return texts[name] if name in texts else self._base.texts.get(name)

    def edges(self, names: Collection[str]) -> Iterator[Triple]:
        """Yield all triples of entities, with some that are not there any more."""
        for name in names:
            yield from self._base.edges(name)
        for triple in self.edits.triples:
            if triple[0] in names or triple[2] in names:
                yield triple

    def absent(self, names: Iterable[str]) -> set[str]:
        """Return those of names that are of no entity: without a triple and a text."""
        left = {name for name in names if self.text(name) is None}
        if not left:
            return left
        added, removed = self.edits.ends()
        return {
            name
            for name in left - added
            if self._base.degree(name) <= removed[name]
            and not any(self.edits.triples.get(edge, True) for edge in self._base.edges(name))
        }

    def has_vectors(self) -> bool:
        """Tell whether there may be a vector."""
        return bool(len(self._base.vectors) or self.edits.vectors)

    def vectors(self) -> dict[str, NDArray[np.float32] | None]:
        """Return the vectors of all entities that have one."""
        held = self._base.vectors
        names = self._base.entities.table.of(held.ids)
        found = {**dict(zip(names, held.rows, strict=True)), **self.edits.vectors}
        return {name: row for name, row in found.items() if row is not None}

    def dimension(self) -> int | None:
        """Return the number of components of the vectors there are, None where there are none."""
        fresh = next((row for row in self.edits.vectors.values() if row is not None), None)
        if fresh is not None:
            return len(fresh)
        hidden = sum(self._base.vector(name) is not None for name in self.edits.vectors)
        return self._base.vectors.rows.shape[1] if hidden < len(self._base.vectors) else None

    def drop_vectors(self, names: Iterable[str]) -> None:
        """Take the vectors of entities away."""
        vectors = self.edits.vectors
        for name in names:
            if vectors.get(name) is not None or self._base.vector(name) is not None:
                vectors[name] = None

    def drop_all_vectors(self) -> None:
        """Take all vectors away."""
        self.edits.vectors.clear()
        self._base = replace(self._base, vectors=EntityVectors())

    def merge_if_many(self) -> None:
        """Let the edits be merged if they are many."""
        if self._are_many() and not self._merging.is_running:
            self._merging.start(self, len(self.edits))

    def next_merge(self) -> tuple[GraphVersion, Edits] | None:
        with self.lock:
            if self._is_closed or not self._are_many():
                self._merging.forget()
                return None
            self._is_asked = False
        with self._building:
            try:
                return self._made()
            except ClosedError:
                return None

    def install(self, version: GraphVersion, edits: Edits, base: GraphBase) -> None:
        """Put a merged version in the place of the base it was made of, if that is there still."""
        with self.lock:
            if self._is_closed or self._base is not version.base:
                return
            self._base = base
            self.merges += 1
            self._merging.failed_at = 0
            is_latest = self.number == version.version
            self.edits = Edits() if is_latest else self.edits.since(edits)
            self._view = None

    def renew_after_fork(self) -> None:
        self._building = threading.Lock()
        self._base.entities.table.lock = threading.Lock()
        self._base.relations.table.lock = threading.Lock()

    def _made(self) -> tuple[GraphVersion, Edits]:
        """Return the present version and the edits in it; merged at once where they are most."""
        with self.lock:
            self._require_open()
            number, base, edits = self.number, self._base, self.edits.copy()
            if self._view is not None:
                return self._view, edits
        version = GraphVersion(number, base, edits)
        if len(edits) > base.size * self._at_once:
            base = version.merged()
            self.install(version, edits, base)
            version, edits = GraphVersion(number, base, Edits()), Edits()
        with self.lock:
            if self.number == number and self._base is version.base:
                self._view = version
        return version, edits

    def _are_many(self) -> bool:
        most = self._merge_after or max(_MERGE_AFTER, self._base.size // _MERGE_PART)
        return len(self.edits) >= most * (1 if self._is_asked else _UNASKED)

    def _require_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the knowledge graph is closed")
