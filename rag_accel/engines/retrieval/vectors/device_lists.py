"""Copies of lists on a torch device, scanned there while other lists are scanned here.

HedraRAG (section 4.4) searches the clusters that its cache on a GPU holds there, the others on the
processor at the same time, and merges what both found. Products of float32 differ in their last
bits from device to device: what is found are candidates, as FAISS's are (``nearest.py``).
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rag_accel.engines.retrieval.index.documents import Labels
from rag_accel.engines.retrieval.vectors.inverted_list import InvertedList
from rag_accel.engines.retrieval.vectors.spec import Metric, Vectors
from rag_accel.engines.retrieval.vectors.vectors import NO_LABEL, Scores
from rag_accel.errors import ConfigError

#: scores that a scan holds at a time
BLOCK_SCORES = 1 << 26

logger = logging.getLogger("rag_accel.retrieval")


class Copies(NamedTuple):
    """The vectors of some clusters, one behind another, on the device.

    Args:
        vectors: ``[n, dim]``.
        squares: ``[n]``, their squared lengths.
        labels: ``[n]``.
        clusters: ``[n]``, of each vector.
        places: where the vectors of a cluster begin and end.
        is_valid: ``[clusters]``, which of all clusters are among them, as they are.
    """

    vectors: Any
    squares: Any
    labels: Any
    clusters: Any
    places: Mapping[int, tuple[int, int]]
    is_valid: npt.NDArray[np.bool_]


class DeviceLists:
    """Copies of clusters on a device. Scans are made by several threads, copies by one.

    Args:
        device: of torch, such as ``"cuda:0"``.
        metric: of the index.
        num_clusters: of the index.
        dimension: of its vectors.

    Raises:
        ConfigError: torch is not installed, or there is no such device.
    """

    def __init__(self, device: str, metric: Metric, num_clusters: int, dimension: int) -> None:
        check_device(device)
        self._torch = _torch()
        self._metric = metric
        self._pid = os.getpid()
        self.name = device
        vectors, labels = np.empty((0, dimension), np.float32), np.empty(0, np.int64)
        none, places = self._there(labels), dict[int, tuple[int, int]]()
        there, is_valid = self._there(vectors), np.zeros(num_clusters, dtype=bool)
        #: what is there; whoever scans takes it once
        self.copies = Copies(there, there.sum(1), none, none, places, is_valid)
        #: why it is not used any more; None while it is
        self.fault: str | None = None

    def why_not(self) -> str | None:
        """Return why a call is to be made without it; None if it may be made with it."""
        if self.fault is not None:
            return self.fault
        if os.getpid() != self._pid:
            return "the process was forked: its device is the parent's"
        if self._torch.get_float32_matmul_precision() != "highest":
            return "torch's float32 products are set to a lower precision than 'highest'"
        return None

    def copy(self, clusters: Sequence[int], lists: Sequence[InvertedList]) -> Copies:
        """Return copies of all lists, made there of those that are there already.

        Until it is used in place of the others, both take memory.

        Raises:
            RuntimeError: the device has no room, or is gone.
        """
        cat, now = self._torch.cat, self.copies
        vectors, labels, owners = [now.vectors[:0]], [now.labels[:0]], [now.clusters[:0]]
        places, end = dict[int, tuple[int, int]](), 0
        for cluster, one in zip(clusters, lists, strict=True):
            if now.is_valid[cluster]:
                start, stop = now.places[cluster]
                parts = now.vectors[start:stop], now.labels[start:stop], now.clusters[start:stop]
            else:
                owner = np.full(len(one), cluster, dtype=np.int64)
                parts = self._there(one.vectors), self._there(one.labels), self._there(owner)
            for column, part in zip((vectors, labels, owners), parts, strict=True):
                column.append(part)
            places[cluster] = end, end + len(one)
            end += len(one)
        is_valid = np.zeros_like(now.is_valid)
        is_valid[[*clusters]] = True
        there = cat(vectors)
        return Copies(there, there.square().sum(1), cat(labels), cat(owners), places, is_valid)

    def extended(self, start: int, vectors: Vectors, labels: Labels) -> Copies | None:
        """Return the first ``start`` vectors of one cluster that are there, and these behind them.

        None if the device failed.
        """
        cat, now = self._torch.cat, self.copies
        try:
            there = cat([now.vectors[:start], self._there(vectors)])
            names = cat([now.labels[:start], self._there(labels)])
            clusters = self._torch.zeros_like(names)
            squares = there.square().sum(1)
        except RuntimeError as error:
            self.give_up(error)
            return None
        return Copies(there, squares, names, clusters, {0: (0, len(there))}, np.ones(1, np.bool_))

    def forget(self, clusters: Sequence[int]) -> None:
        """Have clusters that have changed be scanned no more."""
        is_valid = self.copies.is_valid.copy()
        is_valid[[*clusters]] = False
        self.copies = self.copies._replace(is_valid=is_valid)

    def begin(
        self,
        copies: Copies,
        queries: Vectors,
        count: int,
        wanted: npt.NDArray[np.bool_] | None,
        allowed: Labels | None,
    ) -> Any:
        """Begin a scan; return what ``end`` takes, None if the device failed.

        Args:
            copies: what to scan.
            queries: ``[n, dim]``.
            count: how many to find.
            wanted: ``[n, clusters]``, which clusters each query reads; None reads all.
            allowed: the only labels that may be found; None allows all.
        """
        try:
            torch, asked = self._torch, self._there(queries)
            lengths = asked.square().sum(1, keepdim=True)
            of_query = None if wanted is None else self._there(wanted)
            in_scope = None if allowed is None else torch.isin(copies.labels, self._there(allowed))
            found, step = list[tuple[Any, Any]](), max(count, BLOCK_SCORES // len(queries))
            for start in range(0, len(copies.labels), step):
                part = slice(start, start + step)
                scores = asked @ copies.vectors[part].T
                if self._metric is Metric.L2:
                    scores = 2 * scores - copies.squares[part] - lengths
                if of_query is not None:
                    scores.masked_fill_(~of_query[:, copies.clusters[part]], -torch.inf)
                if in_scope is not None:
                    scores.masked_fill_(~in_scope[part], -torch.inf)
                best = scores.topk(min(count, scores.shape[1]), dim=1)
                found.append((best.values, copies.labels[part][best.indices]))
            scores, labels = (torch.cat(parts, dim=1) for parts in zip(*found, strict=True))
            best = scores.topk(min(count, scores.shape[1]), dim=1)
            return best.values, labels.gather(1, best.indices)
        except RuntimeError as error:
            self.give_up(error)
            return None

    def end(self, begun: Any) -> tuple[Scores, Labels] | None:
        """Wait for a scan; return scores, best first, and labels, ``[n, at most count]``.

        None if the device failed.
        """
        try:
            scores, labels = (part.cpu().numpy() for part in begun)
        except RuntimeError as error:
            self.give_up(error)
            return None
        return scores, np.where(np.isneginf(scores), NO_LABEL, labels)

    def give_up(self, error: Exception) -> None:
        """Use the device no more, and say so once."""
        if self.fault is None:
            self.fault = f"{type(error).__name__}: {error}"
            logger.warning("copies on %s are not used any more: %s", self.name, error)

    def _there(self, array: Any) -> Any:
        return self._torch.from_numpy(array).to(self.name)


def check_device(device: str) -> None:
    """Raise ConfigError unless torch is installed and has the device."""
    try:
        _torch().zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was built for CUDA
        raise ConfigError(
            "no device for copies of vectors",
            where="hot",
            found=f"{device!r}: {error}",
            valid="'ram', or a device of torch on this machine, such as 'cuda:0'",
        ) from error


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise ConfigError(
            "copies of vectors on a device without torch",
            where="hot",
            found=str(error),
            valid="'ram', or an installed torch",
            hint="pip install torch, or set hot='ram'",
        ) from error
