"""Documents by id and label, found by metadata that equals a filter.

A document gets a *label*, an increasing integer, when its id is first seen and keeps it until it
is deleted; vectors are stored under labels. Their order is the order of insertion.
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
_MISSING = object()


@dataclass(slots=True)
class _Postings:
    """The labels that hold each value of one metadata field.

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
        """Forget a label, if it is there."""
        self.others.discard(label)
        labels = self.by_value.get(value) if _is_plain(value) else None
        if labels is None:
            return
        labels.discard(label)
        if not labels:
            del self.by_value[value]


@dataclass(frozen=True, slots=True)
class Intake:
    """Documents that a table can take, with all that can fail about it done.

    Args:
        documents: their ids do not repeat.
        labels: one for each; that of the document with this id, or a new one.
        is_known: whether the id is there already.
        fields: all metadata fields of the table once it has them.
    """

    documents: Sequence[Document]
    labels: Labels
    is_known: Mask
    fields: frozenset[str]


class DocumentTable:
    """Documents by id and by label. Not thread-safe but for concurrent reads.

    A change that was broken off, wherever, is completed by making it again.
    """

    def __init__(self) -> None:
        self._labels: dict[str, int] = {}
        #: to be read only, under the index's lock
        self.by_label: dict[int, Document] = {}
        self._postings: dict[str, _Postings] = {}
        self._fields: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self.by_label)

    def __getitem__(self, label: int) -> Document:
        return self.by_label[label]

    @property
    def fields(self) -> frozenset[str]:
        """Return the metadata fields that some document has, or once had."""
        return self._fields

    def in_order(self) -> tuple[Document, ...]:
        return tuple(self.by_label[label] for label in sorted(self.by_label))

    def labels_of(self, ids: Iterable[str]) -> list[int]:
        """Return the labels of the ids that exist, in the order asked for."""
        return [self._labels[id] for id in ids if id in self._labels]

    def labels(self) -> Labels:
        return np.asarray(sorted(self.by_label), dtype=np.int64)

    def intake(self, documents: Sequence[Document], next_label: int = 0) -> Intake:
        """Return what ``put`` takes; changes nothing. Ids must not repeat.

        A known id keeps its label; the others get ``next_label`` and those that follow.
        """
        is_known = np.asarray([document.id in self._labels for document in documents], dtype=bool)
        labels = next_label + np.cumsum(~is_known, dtype=np.int64) - 1
        labels[is_known] = self.labels_of(document.id for document in documents)
        names = {name for document in documents for name in document.metadata}
        fields = self._fields if names <= self._fields else self._fields | names
        return Intake(documents, labels, is_known, fields)

    def put(self, intake: Intake) -> None:
        """Store documents, replacing those of the same labels."""
        for label, document in zip(intake.labels.tolist(), intake.documents, strict=True):
            old = self.by_label.get(label)
            if old is not None:
                self._unpost(label, old)
            self._labels[document.id] = label
            self.by_label[label] = document
            for name, postings in self._postings.items():
                value = _value(document, name)
                if value is not _MISSING:
                    postings.add(label, value)
        self._fields = intake.fields

    def remove(self, labels: Iterable[int]) -> None:
        """Forget the documents of these labels."""
        for label in labels:
            document = self.by_label.get(label)
            if document is not None:
                self._unpost(label, document)
                self._labels.pop(document.id, None)
                del self.by_label[label]

    def forget_filters(self) -> None:
        """Forget the postings of filters; the next filters rebuild them."""
        self._postings = {}

    def matching(self, where: Mapping[str, Any] | None) -> Labels | None:
        """Return the labels whose metadata equals every given value; None means all.

        Values are compared with ``==``. A document without the field does not match, so a field
        that no document has matches nothing; neither do values that cannot be compared.
        """
        if not where:
            return None
        if not all(name in self._fields for name in where):
            return np.empty(0, dtype=np.int64)
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
            if _is_equal(_value(self.by_label[label], name), value)
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
        for label, document in self.by_label.items():
            value = _value(document, name)
            if value is not _MISSING:
                postings.add(label, value)
        self._postings[name] = postings
        return postings

    def _unpost(self, label: int, document: Document) -> None:
        for name, postings in self._postings.items():
            value = _value(document, name)
            if value is not _MISSING:
                postings.remove(label, value)


def _value(document: Document, name: str) -> Any:
    try:
        return document.metadata.get(name, _MISSING)
    except Exception:  # a key that cannot be compared with a name
        return _MISSING


def _is_plain(value: Any) -> bool:
    return type(value) in _PLAIN and value == value  # NaN equals nothing, itself included


def _is_equal(left: Any, right: Any) -> bool:
    try:
        answer = left == right
        # NumPy compares the members of a list with a number: that says nothing of the list.
        return getattr(answer, "shape", ()) == () and bool(answer)
    except Exception:  # whatever one document's value does, other documents still match
        return False
