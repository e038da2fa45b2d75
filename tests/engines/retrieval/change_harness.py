"""Change an index, say what it should then hold, and compare with plain Python."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rag_accel.engine_api import Document
from rag_accel.engines.retrieval import DocumentIndex, IndexKind, IndexSpec, Metric
from rag_accel.engines.retrieval.hybrid.lexical import LexicalIndex

DIMENSION = 3
WORDS = ("ant", "bee", "cat", "dog")
QUERIES = ((1, -2, 0), (2, 1, 1), (0, 0, 0))

Entry = tuple[tuple[int, ...], Document]
Contents = dict[str, Entry]
"""What an index holds: vectors and documents by id, in the order of insertion."""


@dataclass(frozen=True, slots=True)
class Change:
    """Say what is added or replaced, or what is deleted."""

    entries: tuple[Entry, ...] = ()
    deleted: tuple[str, ...] = ()

    def make(self, index: DocumentIndex) -> None:
        """Change an index."""
        if self.entries:
            vectors = np.asarray([vector for vector, _ in self.entries], dtype=np.float32)
            index.add([document for _, document in self.entries], vectors)
        if self.deleted:
            index.delete(self.deleted)

    def after(self, contents: Contents) -> Contents:
        """Return what an index of these contents holds after the change."""
        changed = {id: entry for id, entry in contents.items() if id not in self.deleted}
        changed.update((document.id, (vector, document)) for vector, document in self.entries)
        return changed


def spec(
    kind: IndexKind, metric: Metric = Metric.INNER_PRODUCT, codes: str | None = None
) -> IndexSpec:
    """Configure a small index; an IVF one trains at 12 documents, and codes miss nothing."""
    return IndexSpec(
        DIMENSION, metric, kind, num_clusters=3, nprobe=3, train_size=12, codes=codes, refine=99
    )


def entry(rng: random.Random, id: str, mark: str = "") -> Entry:
    """Return a document with a vector of small whole numbers: exact, and full of ties."""
    vector = tuple(rng.randint(-2, 2) for _ in range(DIMENSION))
    words = " ".join(rng.choices(WORDS, k=3))
    value: Any = rng.choice([0, 1, [0], None])
    return vector, Document(
        id, f"{words} {vector} {mark}", {"x": value} if value is not None else {}
    )


def filled(
    kind: IndexKind, count: int = 14, codes: str | None = None
) -> tuple[DocumentIndex, Contents]:
    """Return an index of documents ``d0`` and so on, filters in use, and what it holds."""
    index, rng = DocumentIndex(spec(kind, codes=codes)), random.Random(count)
    filling = Change(tuple(entry(rng, f"d{number}") for number in range(count)))
    filling.make(index)
    index.search([QUERIES[0]], 1, where={"x": 1})
    return index, filling.after({})


@dataclass(slots=True)
class Changes:
    """Make up changes of a growing and shrinking index."""

    rng: random.Random
    number: int = field(default=0)

    def next(self, contents: Contents) -> Change:
        """Return a change: a few documents more, others in place of some, both, or fewer."""
        rng, present = self.rng, list(contents)
        kind = rng.choice(["add", "replace", "both", "delete"] if len(present) < 40 else ["delete"])
        some = tuple(rng.sample(present, min(len(present), rng.randint(1, 4))))
        if kind == "delete":
            return Change(deleted=(*some, "unknown") if len(present) < 40 else tuple(present[5:]))
        ids = [] if kind == "add" else list(some)
        if kind != "replace":
            for _ in range(rng.randint(1, 3)):
                self.number += 1
                ids.append(f"new{self.number}")
        return Change(tuple(entry(rng, id, "changed") for id in ids))


def contents_of(index: DocumentIndex, *possible: Contents) -> Contents:
    """Return which of these is what the index holds, in every respect."""
    ids = list(dict.fromkeys(id for contents in possible for id in contents))
    found = {document.id: document for document in index.get(ids)}
    matching = [one for one in possible if {id: doc for id, (_, doc) in one.items()} == found]
    assert matching, f"neither before nor after: {sorted(found)}"
    check(index, matching[0])
    return matching[0]


def check(index: DocumentIndex, contents: Contents) -> None:
    """Compare every look at an index with plain Python."""
    assert len(index) == len(contents)
    everything = len(contents) + 3
    for query in QUERIES:
        expected = ranked(contents, query, index.spec.metric)
        assert found(index, query, everything) == expected
        assert found(index, query, 2) == expected[:2]
        for value in (0, 1, [0], "none"):
            fitting = [one for one in expected if one[0].metadata.get("x", ...) == value]
            assert found(index, query, everything, {"x": value}) == fitting
    rows = index.vectors(contents)
    assert {id: tuple(row) for id, row in rows.items()} == {
        id: vector for id, (vector, _) in contents.items()
    }


def check_words(lexical: LexicalIndex, contents: Contents) -> None:
    """Compare a ranking by words with that of a new index."""
    fresh = DocumentIndex(IndexSpec(1))
    fresh.add([document for _, document in contents.values()], np.ones((len(contents), 1)))
    assert lexical.search(WORDS, 99) == LexicalIndex(fresh).search(WORDS, 99)


def found(
    index: DocumentIndex, query: Any, k: int, where: Any = None
) -> list[tuple[Document, float]]:
    """Return what a search over all clusters finds."""
    (row,) = index.search([query], k, where, nprobe=3)
    return [(hit.document, hit.score) for hit in row]


def ranked(contents: Contents, query: Any, metric: Metric) -> list[tuple[Document, float]]:
    """Return all documents, best first; equal scores in the order of insertion."""

    def score(vector: tuple[int, ...]) -> float:
        pairs = list(zip(query, vector, strict=True))
        if metric is Metric.INNER_PRODUCT:
            return float(sum(a * b for a, b in pairs))
        return -float(sum((a - b) ** 2 for a, b in pairs))

    scored = [(document, score(vector)) for vector, document in contents.values()]
    return sorted(scored, key=lambda one: -one[1])
