"""Keep documents beside their vectors and find those whose metadata equals a filter.

A document gets a *label*, an increasing integer, when its id is first seen and keeps it until it
is deleted; labels are what the vector side knows. Their order is the order of insertion.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rag_accel.engine_api import Document

Labels = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


_PLAIN = frozenset({str, int, float, bool, bytes, type(None)})


@dataclass(slots=True)
class _Postings:
    """Say for one metadata field which labels hold which value.

    Only plain values are looked up by hash; anything else, which may be unhashable or change its
    hash, is compared one by one.
    """

    by_value: dict[Any, set[int]] = field(default_factory=dict)
    others: set[int] = field(default_factory=set)

    def add(self, label: int, value: Any) -> None:
        if _is_plain(value):
            self.by_value.setdefault(value, set()).add(label)
        else:
            self.others.add(label)

    def remove(self, label: int, value: Any) -> None:
        if not _is_plain(value):
            self.others.remove(label)
            return
        labels = self.by_value[value]
        labels.remove(label)
        if not labels:
            del self.by_value[value]


class DocumentTable:
    """Map ids to labels to documents. Not thread-safe but for concurrent reads."""

    def __init__(self) -> None:
        self._labels: dict[str, int] = {}
        self._documents: dict[int, Document] = {}
        self._postings: dict[str, _Postings] = {}
        self._next_label = 0

    def __len__(self) -> int:
        return len(self._documents)

    def __getitem__(self, label: int) -> Document:
        return self._documents[label]

    def in_order(self) -> tuple[Document, ...]:
        """Return all documents by insertion."""
        return tuple(self._documents[label] for label in sorted(self._documents))

    def labels_of(self, ids: Iterable[str]) -> list[int]:
        """Return the labels of the ids that exist, in the order asked for."""
        return [self._labels[id] for id in ids if id in self._labels]

    def labels(self) -> Labels:
        """Return all labels by insertion."""
        return np.asarray(sorted(self._documents), dtype=np.int64)

    def assign_labels(self, documents: Sequence[Document]) -> tuple[Labels, Mask]:
        """Return a label for each document and whether its id is known; changes nothing.

        A known id keeps its label; new labels are above all others. Ids must not repeat.
        """
        is_known = np.asarray([document.id in self._labels for document in documents], dtype=bool)
        labels = self._next_label + np.cumsum(~is_known, dtype=np.int64) - 1
        labels[is_known] = self.labels_of(document.id for document in documents)
        return labels, is_known

    def put(self, labels: Labels, documents: Sequence[Document]) -> None:
        """Store documents under labels from ``assign_labels``, replacing what was there."""
        for label, document in zip(labels.tolist(), documents, strict=True):
            if label in self._documents:
                self._unpost(label)
            self._labels[document.id] = label
            self._documents[label] = document
            for name, postings in self._postings.items():
                if name in document.metadata:
                    postings.add(label, document.metadata[name])
            self._next_label = max(self._next_label, label + 1)

    def remove(self, labels: Iterable[int]) -> None:
        """Forget the documents of these labels."""
        for label in labels:
            self._unpost(label)
            del self._labels[self._documents.pop(label).id]

    def matching(self, where: Mapping[str, Any] | None) -> Labels | None:
        """Return the labels whose metadata equals every given value; None means all.

        Values are compared with ``==``. A document without the field does not match, so a field
        that no document has matches nothing; neither do values that cannot be compared.
        """
        if not where:
            return None
        found = sorted((self._holding(name, value) for name, value in where.items()), key=len)
        common = found[0].intersection(*found[1:])
        return np.fromiter(common, dtype=np.int64, count=len(common))

    def _holding(self, name: str, value: Any) -> set[int]:
        postings = self._postings.get(name)
        if postings is None:
            postings = self._index_field(name)
        others = {
            label
            for label in postings.others
            if _is_equal(self._documents[label].metadata[name], value)
        }
        try:
            plain = postings.by_value.get(value, set[int]())
        except TypeError:  # an unhashable value equals no plain one
            return others
        return plain | others if others else plain

    def _index_field(self, name: str) -> _Postings:
        # Built by the first filter on this field. Two readers may build it at once: both are
        # right, and the last one stays.
        postings = _Postings()
        for label, document in self._documents.items():
            if name in document.metadata:
                postings.add(label, document.metadata[name])
        self._postings[name] = postings
        return postings

    def _unpost(self, label: int) -> None:
        metadata = self._documents[label].metadata
        for name, postings in self._postings.items():
            if name in metadata:
                postings.remove(label, metadata[name])


def _is_plain(value: Any) -> bool:
    return type(value) in _PLAIN and value == value  # NaN equals nothing, itself included


def _is_equal(left: Any, right: Any) -> bool:
    try:
        return bool(left == right)
    except Exception:  # whatever one document's value does, other documents still match
        return False
