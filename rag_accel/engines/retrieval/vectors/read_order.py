"""The order in which a search reads its clusters, by its request's last results (HedraRAG 4.3).

An order never changes the result of a whole scan: it is a permutation of the same clusters. It
changes how soon the best are found, and so how soon a scan may stop.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rag_accel.engines.retrieval.index.documents import Labels
from rag_accel.engines.retrieval.vectors.cluster_scans import ClusterScan
from rag_accel.engines.retrieval.vectors.ivf import IvfVectors
from rag_accel.engines.retrieval.vectors.nearest import nearest
from rag_accel.engines.retrieval.vectors.spec import Metric, Vectors
from rag_accel.engines.retrieval.vectors.vectors import (
    NO_LABEL,
    Scores,
    SearchScope,
    higher_is_nearer,
)

Order = Literal["mixed", "paper", "centroid"]

NEAREST_FIRST = 4  # clusters that "mixed" reads before the ones of the last search
MOST_LABELS = 20  # results of a request that are kept; HedraRAG keeps as many
MOST_REQUESTS = 1024


@dataclass(frozen=True, slots=True)
class LastSearch:
    """The best results of a request's last searches in one version of an index.

    Args:
        version: the index's.
        labels: ``[n]``, of the newest search first, each once.
        clusters: ``[n]``, the cluster of each label.
        searched: the clusters that the newest search read, which only ``paper`` asks for.
    """

    version: int
    labels: Labels
    clusters: Labels
    searched: Labels


class SearchHistory:
    """The results of the last searches of each request. Used by one thread.

    Args:
        most_requests: the request that has searched least recently is forgotten beyond them.
    """

    def __init__(self, most_requests: int = MOST_REQUESTS) -> None:
        self._most = most_requests
        self._found: OrderedDict[tuple[str, str], LastSearch] = OrderedDict()

    def __len__(self) -> int:
        return len(self._found)

    def add(self, namespace: str, request_id: str, found: LastSearch) -> None:
        """Put a search before the earlier ones of its request, as far as these are comparable."""
        before = self.get(namespace, request_id, found.version)
        is_label = found.labels != NO_LABEL
        labels, clusters = found.labels[is_label], found.clusters[is_label]
        if before is not None:
            labels = np.concatenate([labels, before.labels])
            clusters = np.concatenate([clusters, before.clusters])
        places = _first_places(labels)[:MOST_LABELS]
        key = namespace, request_id
        self._found[key] = LastSearch(
            found.version, labels[places], clusters[places], found.searched
        )
        self._found.move_to_end(key)
        while len(self._found) > self._most:
            self._found.popitem(last=False)

    def get(self, namespace: str, request_id: str, version: int) -> LastSearch | None:
        """Return the last results of a request; None if the index has changed since."""
        found = self._found.get((namespace, request_id))
        return found if found is not None and found.version == version else None


def read_order(order: Order, clusters: Labels, scores: Scores, last: LastSearch | None) -> Labels:
    """Return the places of ``clusters`` in the order in which they are to be read.

    ``mixed`` begins with the four nearest, then reads the clusters of the last results, newest
    first, then the others. ``paper`` begins with the clusters of the last results, then reads those
    that the last search read. Otherwise, and among equals, the nearest centroid comes first.

    Args:
        order: which; without a last search all are ``centroid``.
        clusters: ``[m]``, each once.
        scores: ``[m]``, of their centroids, higher is nearer.
        last: of the same request.
    """
    by_centroid = np.argsort(-scores, kind="stable")
    if last is None or order == "centroid":
        return by_centroid
    ordered = clusters[by_centroid]
    holding = last.clusters[_first_places(last.clusters)]
    if order == "paper":
        ranks = np.where(np.isin(ordered, last.searched), 1, 2)
        ranks[np.isin(ordered, holding)] = 0
    else:
        ranks = np.full(len(ordered), len(holding))
        places = {int(cluster): place for place, cluster in enumerate(holding)}
        for place in np.flatnonzero(np.isin(ordered, holding)).tolist():
            ranks[place] = places[int(ordered[place])]
        ranks[:NEAREST_FIRST] = -1
    return by_centroid[np.argsort(ranks, kind="stable")]


def use_order(order: Order, scan: ClusterScan, metric: Metric, last: LastSearch | None) -> None:
    """Let a scan read its clusters, of which none is read yet, in an order of ``read_order``."""
    scores = higher_is_nearer(metric, scan.coarse)
    scan.leave(read_order(order, scan.clusters, scores, last))


@dataclass(frozen=True, slots=True)
class FollowedSearch:
    """A search after another of the same request, to compare them.

    Args:
        last: the results of the other.
        scan: of the search; nothing of it is read.
        labels: of its results.
        clusters: the cluster of each.
    """

    last: LastSearch
    scan: ClusterScan
    labels: Labels
    clusters: Labels

    def share_until_final(self, order: Order, metric: Metric) -> float:
        """Return the share of the scan's vectors behind which all results are found in an order.

        They are final then, as no other vector is nearer; 1.0 if some lie in no cluster of it.
        """
        scan = self.scan
        use_order(order, scan, metric, self.last)
        holding = np.flatnonzero(np.isin(scan.clusters, self.clusters))
        if len(holding) < len(np.unique(self.clusters)):
            return 1.0
        until = scan.vectors_in(0, int(holding.max(initial=-1)) + 1)
        return until / max(1, scan.num_vectors)


def follow_searches(
    index: IvfVectors, first: Vectors, second: Vectors, k: int
) -> list[FollowedSearch]:
    """Search for ``second[i]`` after ``first[i]``, ``[n, dim]`` each, for ``k`` results."""
    scope, count = SearchScope(len(index)), len(first)
    before = nearest(index, first, [MOST_LABELS] * count, scope, without_codes=True)
    final = nearest(index, second, [k] * count, scope, without_codes=True)
    scans = index.begin(first, k, scope), index.begin(second, k, scope)
    searches = list[FollowedSearch]()
    for earlier, scan, old, new in zip(*scans, before, final, strict=True):
        last = LastSearch(0, old.labels, index.clusters_of(old.labels), earlier.clusters)
        searches.append(FollowedSearch(last, scan, new.labels, index.clusters_of(new.labels)))
    return searches


def _first_places(numbers: Labels) -> Labels:
    """Return the place of each different number where it comes first, rising."""
    return np.sort(np.unique(numbers, return_index=True)[1])
