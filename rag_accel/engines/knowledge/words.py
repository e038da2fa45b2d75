"""Entities by the words of their names, weighted by how rare a word is."""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Callable, MutableMapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rag_accel.engines.knowledge.adjacency import flat
from rag_accel.engines.knowledge.protocol import Ids, as_ids

_WORD = re.compile(r"[^\W_]+")


def words_of(text: str) -> tuple[str, ...]:
    """Return the distinct words of a text, letters and digits only, whatever their case."""
    return tuple(dict.fromkeys(_WORD.findall(text.casefold())))


class WordRows:
    """The words of names whose places follow each other, and which of them have each word.

    Args:
        first: the place of the first name.
        words: the words of each name, one name after the other.
        sizes: ``[n], int64``, how many each name has.
    """

    def __init__(self, first: int, words: Ids, sizes: Ids) -> None:
        self.first = first
        self.words, self.sizes = words, sizes
        self._starts = np.cumsum(sizes) - sizes
        order = np.argsort(words, kind="stable")
        self._sorted_words = words[order]
        self._holders = np.repeat(np.arange(first, first + len(sizes)), sizes)[order]

    def __len__(self) -> int:
        return len(self.sizes)

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], first: int) -> WordRows:
        """Return the words of names, given name by name."""
        words = as_ids([word for row in rows for word in row])
        return cls(first, words, as_ids(list(map(len, rows))))

    def holders(self, word: int) -> Ids:
        """Return the ids of the names that have a word, ascending."""
        low, high = np.searchsorted(self._sorted_words, (word, word + 1))
        return self._holders[low:high]

    def of_names(self, ids: Ids) -> tuple[Ids, Ids]:
        """Return the words of some names, one name after the other, and how many each has."""
        places = ids - self.first
        sizes = self.sizes[places]
        return self.words[flat(self._starts[places], sizes)], sizes


class NameWords:
    """The words of the names of a graph, and which names have them.

    A name's score is the weight of the words it shares times the part of its own weight that they
    are: of two names that share the same words, the shorter one is meant. A word weighs the more,
    the fewer of the names that are there have it. So every name that comes or goes changes all
    weights; they are worked out for the words that a question meets, from counts that an edit
    changes a few of.

    Args:
        ids: of each word.
        rows: the words of names, and those of new names behind them if there are some.
        is_there: ``[n], bool``, the names that can be found.
        having: ``[w], int64``, how many of these names have each word.
        num: how many can be found.
    """

    def __init__(
        self,
        ids: MutableMapping[str, int],
        rows: Sequence[WordRows],
        is_there: NDArray[np.bool_],
        having: Ids,
        num: int,
    ) -> None:
        self._ids, self._rows = ids, rows
        self._is_there, self._having, self._num = is_there, having, num
        #: names that totals were made for, until those of all are
        self._num_looked = 0
        self._all_totals: NDArray[np.float64] | None = None

    @classmethod
    def of(cls, names: Sequence[str]) -> NameWords:
        """Return the words of names, by their places."""
        ids: dict[str, int] = {}
        rows = [[ids.setdefault(word, len(ids)) for word in words_of(name)] for name in names]
        return cls._alone(ids, WordRows.of(rows, 0))

    @classmethod
    def _alone(cls, ids: MutableMapping[str, int], rows: WordRows) -> NameWords:
        having = np.bincount(rows.words, minlength=len(ids))
        return cls(ids, (rows,), np.ones(len(rows), np.bool_), having, len(rows))

    def edited(self, names: Sequence[str], changed: Ids, is_there: NDArray[np.bool_]) -> NameWords:
        """Return the words of these names and of new ones; it takes as long as they are many.

        Args:
            names: those behind the ones known here, which can all be found and are in one part.
            changed: places of known names, each once, that may have gone.
            is_there: ``[n], bool``, which of all can be found.
        """
        (known,) = self._rows
        own: dict[str, int] = {}
        num = len(self._ids)
        rows = [
            [
                self._ids[word] if word in self._ids else own.setdefault(word, num + len(own))
                for word in words_of(name)
            ]
            for name in names
        ]
        new = WordRows.of(rows, len(known))
        gone = changed[~is_there[changed]]
        fresh = np.flatnonzero(is_there[len(known) :]) + len(known)
        having = np.concatenate((self._having, np.zeros(len(own), np.int64)))
        for part, some, by in ((known, gone, -1), (new, fresh, 1)):
            np.add.at(having, part.of_names(some)[0], by)
        parts = (known, new) if len(new) else (known,)
        return NameWords(
            ChainMap(own, self._ids), parts, is_there, having, self._num - len(gone) + len(fresh)
        )

    def renamed(self, names: Ids) -> NameWords:
        """Return the words of some names in another order, by their places; no others' words."""
        whole = np.concatenate([rows.words for rows in self._rows])
        sizes = np.concatenate([rows.sizes for rows in self._rows])
        words = whole[flat((np.cumsum(sizes) - sizes)[names], sizes[names])]
        is_used = np.bincount(words, minlength=len(self._having)) > 0
        places = np.cumsum(is_used) - 1
        used, numbers = is_used.tolist(), places.tolist()
        ids = {word: numbers[known] for word, known in self._ids.items() if used[known]}
        return self._alone(ids, WordRows(0, places[words], sizes[names]))

    def find(self, text: str, k: int, rank: Callable[[Ids], Ids]) -> Ids:
        """Return the ``k`` entities whose names share most with a text; without a word, none.

        Args:
            text: the query.
            k: most entities.
            rank: gives numbers of ids in the order of their names.
        """
        shared = np.zeros(len(self._is_there))
        for word in words_of(text):
            known = self._ids.get(word)
            if known is not None:
                weight = self._weights(as_ids([known]))
                for rows in self._rows:
                    holders = rows.holders(known)
                    shared[holders[self._is_there[holders]]] += weight
        some = np.flatnonzero(shared)
        scores = shared[some] ** 2 / self._totals(some)
        return best(some, scores, k, rank)

    def _weights(self, words: Ids) -> NDArray[np.float64]:
        """Return the weights of words; the weight of a word in no name means nothing."""
        weights: NDArray[np.float64] = np.log1p(self._num / np.maximum(self._having[words], 1))
        return weights

    def _totals(self, names: Ids) -> NDArray[np.float64]:
        """Return the weight of all words of each name, summed in their order; ids ascend.

        They are made for all names once the totals of half the names were requested.
        """
        if self._all_totals is None:
            self._num_looked += len(names)
            if 2 * self._num_looked <= len(self._is_there):
                parts = [
                    rows.of_names(names[(names >= rows.first) & (names < rows.first + len(rows))])
                    for rows in self._rows
                ]
                words, sizes = (np.concatenate(part) for part in zip(*parts, strict=True))
                return self._sums(words, sizes)
            words = np.concatenate([rows.words for rows in self._rows])
            sizes = np.concatenate([rows.sizes for rows in self._rows])
            self._all_totals = self._sums(words, sizes)
        return self._all_totals[names]

    def _sums(self, words: Ids, sizes: Ids) -> NDArray[np.float64]:
        """Return the weight of the words of each name: ``[len(sizes)], float64``."""
        num_words = len(self._having)
        if len(words) > num_words:
            weights = self._weights(np.arange(num_words))[words]
        else:
            weights = self._weights(words)
        names = np.repeat(np.arange(len(sizes)), sizes)
        return np.bincount(names, weights, minlength=len(sizes)).astype(np.float64, copy=False)


def best(ids: Ids, scores: np.ndarray, k: int, rank: Callable[[Ids], Ids] = lambda ids: ids) -> Ids:
    """Return the ids of the ``k`` highest scores; equal ones in the order of their ranks."""
    if k <= 0 or not len(ids):
        return np.empty(0, np.int64)
    if k < len(ids):
        least = np.partition(scores, len(ids) - k)[len(ids) - k]
        near = scores >= least
        ids, scores = ids[near], scores[near]
    return ids[np.lexsort((rank(ids), -scores))[:k]]
