"""Vectors in a flat index, with a copy of them all on a torch device."""

from __future__ import annotations

import time
from collections.abc import Mapping

from rag_accel.engines.retrieval.index.documents import Labels
from rag_accel.engines.retrieval.vectors.device_lists import DeviceLists
from rag_accel.engines.retrieval.vectors.flat import FlatVectors
from rag_accel.engines.retrieval.vectors.learned_way import LearnedWay
from rag_accel.engines.retrieval.vectors.spec import IndexSpec, Vectors
from rag_accel.engines.retrieval.vectors.vectors import Rows, Scores, SearchScope
from rag_accel.system.locks import RenewedLock

#: searches since a change, of which the last one copies what changed: an index that changes before
#: each search is not copied for nothing
COPIED_AFTER = 2


class DeviceFlatVectors(FlatVectors):
    """An index as ``FlatVectors`` that is scanned on a device where that is faster.

    Args:
        spec: dimension, metric, ``hot``, ``hot_bytes``.

    Raises:
        ConfigError: there is no such device.
    """

    def __init__(self, spec: IndexSpec) -> None:
        super().__init__(spec)
        assert spec.hot is not None, "an index without a device"
        self._device = DeviceLists(spec.hot, spec.metric, 1, spec.dimension)
        self._hot_bytes = spec.hot_bytes
        #: how many of the first vectors are copied as they are
        self._num_copied = 0
        self._num_since_change = 0
        self._num_searches = self._num_device_searches = 0
        self._way, self._filtered_way = LearnedWay(), LearnedWay()
        #: held to count and to learn
        self._lock = RenewedLock()
        self._is_copying = False

    def add(self, rows: Rows) -> None:
        self._num_since_change = 0
        super().add(rows)

    def replace(self, rows: Rows) -> None:
        if len(rows):
            self._num_copied = self._num_since_change = 0
        super().replace(rows)

    def remove(self, labels: Labels) -> None:
        if len(labels):
            self._num_copied = self._num_since_change = 0
        super().remove(labels)

    def fetch(self, queries: Vectors, count: int, scope: SearchScope) -> tuple[Scores, Labels]:
        """Scan everything the scope allows, on the device or here."""
        way = self._way if scope.allowed is None else self._filtered_way
        numbers = len(queries) * len(self) * self._dimension
        with self._lock.lock:
            self._num_searches += 1
            self._num_since_change += 1
            on_device = self._why_not() is None and way.choose(numbers)
        started, found = time.perf_counter(), None
        on_device = on_device and self._is_copied()  # what a copy takes is learned, too
        if on_device:
            device = self._device
            begun = device.begin(device.copies, queries, count, None, scope.allowed)
            found = None if begun is None else device.end(begun)
            on_device = found is not None
        if found is None:
            found = super().fetch(queries, count, scope)
        with self._lock.lock:
            self._num_device_searches += on_device
            way.note(on_device, numbers, started)
        return found

    @property
    def tier_counts(self) -> Mapping[str, int]:
        """Return the searches since the index was opened, and the bytes on the device."""
        with self._lock.lock:
            return {
                "vector_searches": self._num_searches,
                "device_vector_searches": self._num_device_searches,
                "device_vector_bytes": self._bytes_of(self._num_copied),
            }

    @property
    def tier_text(self) -> str:
        """Return the line that ``Accelerator.explain`` shows."""
        fault, name = self._why_not(), self._device.name
        if fault is not None:
            return f"vectors on {name} are not used: {fault}"
        return f"vectors on {name}: {self._num_device_searches} of {self._num_searches} searches"

    def _why_not(self) -> str | None:
        size = self._bytes_of(len(self))
        if size > self._hot_bytes:
            return f"they take {size} bytes, hot_bytes is {self._hot_bytes}"
        return self._device.why_not()

    def _bytes_of(self, count: int) -> int:
        return 4 * self._dimension * count

    def _is_copied(self) -> bool:
        """Tell whether all vectors are on the device; copy what is not, if it is time.

        Under the lock of the index's readers: no vector moves meanwhile. Other searches do not wait
        for a copy that is being made.
        """
        if self._num_copied == len(self):
            return True
        with self._lock.lock:
            if self._is_copying or self._num_since_change < COPIED_AFTER:
                return False
            self._is_copying = True
        try:
            start, device = self._num_copied, self._device
            if start < len(self):  # else another search has copied them
                labels = self._faiss.rev_swig_ptr(self._index.id_map.data(), len(self))
                copies = device.extended(start, self._matrix()[start:], labels[start:])
                if copies is None:
                    return False
                device.copies, self._num_copied = copies, len(self)
            return True
        finally:
            self._is_copying = False
