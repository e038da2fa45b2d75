"""The clusters that are worth a place in a faster memory: those that searches read most lately.

HedraRAG (section 4.4) keeps the most accessed clusters in a cache and exchanges them every 50
sub-stages. Counts of reads are uncertain: in a stream without favourites they differ by chance. So
a cluster takes another's place only where that is no chance, and is kept otherwise.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rag_accel.engines.retrieval.index.documents import Labels

#: calls that read clusters between two exchanges
EXCHANGED_EVERY = 50
#: of the counts, what stays at each exchange
KEPT_SHARE = 0.9
#: standard deviations of a count by which another must exceed it
LEAST_DEVIATIONS = 3.0
#: and the least factor
LEAST_FACTOR = 1.25
#: of the bytes of a full memory, what one exchange fills with several clusters at most
MOST_EXCHANGED = 1 / 8


class HotClusters:
    """Decayed counts of the reads of clusters, and the choice of the hottest. Used by one thread.

    Args:
        num_clusters: how many there are.
        hot_bytes: of the faster memory.
    """

    def __init__(self, num_clusters: int, hot_bytes: int) -> None:
        self._counts = np.zeros(num_clusters)
        self._hot_bytes = hot_bytes
        self._num_calls = 0
        #: ``[clusters]``, those that have their place
        self.is_hot: npt.NDArray[np.bool_] = np.zeros(num_clusters, dtype=bool)

    def note(self, clusters: Labels) -> bool:
        """Count the reads of a call; tell whether it is time for an exchange."""
        self._counts += np.bincount(clusters[clusters >= 0], minlength=len(self._counts))
        self._num_calls += 1
        return self._num_calls % EXCHANGED_EVERY == 0

    def exchange(self, num_bytes: Labels) -> tuple[list[int], list[int]]:
        """Return the clusters to take in, hottest first, and those that make room for them.

        Args:
            num_bytes: ``[clusters]``; 0 for a cluster that is left out.
        """
        counts, sizes = self._counts.tolist(), num_bytes.tolist()
        takes_part = (num_bytes > 0) & (self._counts > 0)
        hottest_first = np.argsort(-self._counts, kind="stable")
        is_in = self.is_hot & (num_bytes > 0)
        held = hottest_first[is_in[hottest_first]].tolist()
        free = self._hot_bytes - int(num_bytes[is_in].sum())
        left = max(int(self._hot_bytes * MOST_EXCHANGED), free)
        taken, gone = list[int](), list[int]()
        for cluster in hottest_first[(takes_part & ~is_in)[hottest_first]].tolist():
            size, count, room, kept = sizes[cluster], counts[cluster], free, len(held)
            while room < size and kept and _exceeds(count, counts[held[kept - 1]]):
                kept -= 1
                room += sizes[held[kept]]
            if size <= room and (size <= left or not taken):
                gone += held[kept:]
                del held[kept:]
                taken.append(cluster)
                free, left = room - size, left - size
        self._counts *= KEPT_SHARE
        return taken, gone


def _exceeds(count: float, other: float) -> bool:
    """Tell whether a count is above another by more than chance."""
    return count > max(LEAST_FACTOR * other, other + LEAST_DEVIATIONS * other**0.5)
