"""Entities by the words of their names, weighted by how rare a word is."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from rag_accel.engines.knowledge.adjacency import flat
from rag_accel.engines.knowledge.protocol import Ids, as_ids

_WORD = re.compile(r"[^\W_]+")


def words_of(text: str) -> tuple[str, ...]:
    """Return the distinct words of a text, letters and digits only, whatever their case."""
    return tuple(dict.fromkeys(_WORD.findall(text.casefold())))


def _word_ids(ids: dict[str, int], name: str) -> list[int]:
    """Return the ids of the words of a name; new words get theirs."""
    return [ids.setdefault(word, len(ids)) for word in words_of(name)]


class WordRows:
    """The words of names whose ids follow each other, and which of them have each word.

    Args:
        first: the id of the first name.
        words: the words of each name, one name after the other.
        sizes: ``[n], int64``, how many each name has.
        sorted_words: ``[len(words)], int64``, the same words, ascending.
        holders: ``[len(words)], int64``, the id of the name that has each of these.
    """

    def __init__(self, first: int, words: Ids, sizes: Ids, sorted_words: Ids, holders: Ids) -> None:
        self.first = first
        self.words, self.sizes = words, sizes
        self._sorted_words, self._holders = sorted_words, holders
        self._starts = np.cumsum(sizes) - sizes

    def __len__(self) -> int:
        return len(self.sizes)

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], first: int) -> WordRows:
        """Return the words of names, given name by name."""
        sizes = as_ids(list(map(len, rows)))
        words = as_ids([word for row in rows for word in row])
        order = np.argsort(words, kind="stable")
        holders = np.repeat(np.arange(first, first + len(rows)), sizes)
        return cls(first, words, sizes, words[order], holders[order])

    def joined(self, more: WordRows) -> WordRows:
        """Return these and those of the names behind them."""
        places = np.searchsorted(self._sorted_words, more._sorted_words, "right")
        return WordRows(
            self.first,
            np.concatenate((self.words, more.words)),
            np.concatenate((self.sizes, more.sizes)),
            np.insert(self._sorted_words, places, more._sorted_words),
            np.insert(self._holders, places, more._holders),
        )

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
        ids: of each word. Words of later versions may be added to it: theirs are larger.
        rows: the words of names, and those of new names behind them if there are some.
        is_there: ``[n], bool``, the names that can be found.
        having: ``[w], int64``, how many of these names have each word.
        num: how many can be found.
    """

    def __init__(
        self,
        ids: dict[str, int],
        rows: Sequence[WordRows],
        is_there: NDArray[np.bool_],
        having: Ids,
        num: int,
    ) -> None:
        self._ids, self._rows = ids, rows
        self._is_there, self._having, self._num = is_there, having, num
        #: the words of names behind the ones known here, as far as they were read
        self._later: list[list[int]] = []
        #: names that totals were made for, until those of all are
        self._num_looked = 0
        self._all_totals: NDArray[np.float64] | None = None

    @classmethod
    def of(cls, names: Sequence[str], is_there: NDArray[np.bool_]) -> NameWords:
        """Return the words of names, by their places."""
        ids: dict[str, int] = {}
        rows = WordRows.of([_word_ids(ids, name) for name in names], 0)
        words, _ = rows.of_names(np.flatnonzero(is_there))
        num = int(np.count_nonzero(is_there))
        return cls(ids, (rows,), is_there, np.bincount(words, minlength=len(ids)), num)

    def edited(self, names: Sequence[str], changed: Ids, is_there: NDArray[np.bool_]) -> NameWords:
        """Return the words of these names and of new ones; it takes as long as they are many.

        Args:
            names: those behind the ones known here, which must be merged; of two calls, one gets
                the first of the other's. Not from two threads at once.
            changed: ids of known names, each once, that may have come or gone.
            is_there: ``[n], bool``, which of all can be found.
        """
        (known,) = self._rows
        for name in names[len(self._later) :]:
            self._later.append(_word_ids(self._ids, name))
        new = WordRows.of(self._later[: len(names)], len(known))
        was, now = self._is_there[changed], is_there[changed]
        came, gone = changed[now & ~was], changed[was & ~now]
        fresh = np.flatnonzero(is_there[len(known) :]) + len(known)
        having = np.zeros(len(self._ids), np.int64)
        having[: len(self._having)] = self._having
        for rows, some, by in ((known, came, 1), (known, gone, -1), (new, fresh, 1)):
            np.add.at(having, rows.of_names(some)[0], by)
        num = self._num + len(came) - len(gone) + len(fresh)
        parts = (known, new) if len(new) else (known,)
        return NameWords(self._ids, parts, is_there, having, num)

    def merged(self) -> NameWords:
        """Return the same words in one part; slow, and any thread may do it."""
        rows = self._rows[0] if len(self._rows) == 1 else self._rows[0].joined(self._rows[1])
        return NameWords(self._ids, (rows,), self._is_there, self._having, self._num)

    def find(self, text: str, k: int, rank: Callable[[Ids], Ids]) -> Ids:
        """Return the ``k`` entities whose names share most with a text; without a word, none.

        Args:
            text: the query.
            k: most entities.
            rank: gives numbers of ids in the order of their names.
        """
        shared, num_words = np.zeros(len(self._is_there)), len(self._having)
        for word in words_of(text):
            known = self._ids.get(word, num_words)
            if known < num_words:
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
