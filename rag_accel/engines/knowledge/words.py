"""Entities by the words of their names, weighted by how rare a word is."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rag_accel.engines.knowledge.adjacency import flat
from rag_accel.engines.knowledge.protocol import Ids, as_ids

_WORD = re.compile(r"[^\W_]+")


def words_of(text: str) -> tuple[str, ...]:
    """Return the distinct words of a text, letters and digits only, whatever their case."""
    return tuple(dict.fromkeys(_WORD.findall(text.casefold())))


class NameWords:
    """The words of names, and which names have them.

    A name's score is the weight of the words it shares times the part of its own weight that they
    are: of two names that share the same words, the shorter one is meant. A word weighs the more,
    the fewer of the names that are there have it.

    Args:
        ids: of each word. Words of later versions may be added to it: theirs are larger.
        words: the words of each name, one name after the other.
        sizes: ``[n], int64``, how many each name has.
        holders: ``[len(words)], int64``, the names that have each word, word by word.
        spread: ``[w], int64``, how many names have each word, whether they are there or not.
        is_there: ``[n], bool``, the names that can be found.
    """

    def __init__(
        self,
        ids: dict[str, int],
        words: Ids,
        sizes: Ids,
        holders: Ids,
        spread: Ids,
        is_there: NDArray[np.bool_],
    ) -> None:
        self._ids, self._words, self._sizes = ids, words, sizes
        self._holders, self._spread, self.is_there = holders, spread, is_there
        self._starts = np.cumsum(sizes) - sizes
        self._firsts = np.cumsum(spread) - spread
        self._num = int(np.count_nonzero(is_there))

    @classmethod
    def of(cls, names: Sequence[str], is_there: NDArray[np.bool_]) -> NameWords:
        """Return the words of names, by their places."""
        none = np.empty(0, np.int64)
        empty = cls({}, none, none, none, none, np.empty(0, np.bool_))
        return empty.extended(names, is_there)

    def extended(self, names: Sequence[str], is_there: NDArray[np.bool_]) -> NameWords:
        """Return the words of these names and of more.

        Args:
            names: those behind the ones known here.
            is_there: ``[n], bool``, which of all can be found.
        """
        ids, first = self._ids, len(self._sizes)
        rows = [[ids.setdefault(word, len(ids)) for word in words_of(name)] for name in names]
        sizes = as_ids(list(map(len, rows)))
        words = as_ids([word for row in rows for word in row])
        spread = np.zeros(len(ids), np.int64)
        spread[: len(self._spread)] = self._spread
        ends = np.cumsum(spread)
        order = np.argsort(words, kind="stable")
        holders = np.repeat(np.arange(first, first + len(rows)), sizes)[order]
        return NameWords(
            ids,
            np.concatenate((self._words, words)),
            np.concatenate((self._sizes, sizes)),
            np.insert(self._holders, ends[words[order]], holders),
            spread + np.bincount(words, minlength=len(ids)),
            is_there,
        )

    def find(self, text: str, k: int, rank: Callable[[Ids], Ids]) -> Ids:
        """Return the ``k`` entities whose names share most with a text; without a word, none.

        Args:
            text: what is asked.
            k: most entities.
            rank: gives numbers of ids in the order of their names.
        """
        shared = np.zeros(len(self._sizes))
        for word in words_of(text):
            known = self._ids.get(word, len(self._spread))
            if known < len(self._spread):
                first = self._firsts[known]
                holders = self._holders[first : first + self._spread[known]]
                shared[holders[self.is_there[holders]]] += self._weights[known]
        some = np.flatnonzero(shared)
        scores = shared[some] ** 2 / self._totals[some]
        return best(some, scores, k, rank)

    @cached_property
    def _weights(self) -> NDArray[np.float64]:
        """Return the weight of each word; that of one that no name has means nothing."""
        places = flat(self._starts[self.is_there], self._sizes[self.is_there])
        having = np.bincount(self._words[places], minlength=len(self._spread))
        return np.log1p(self._num / np.maximum(having, 1))

    @cached_property
    def _totals(self) -> NDArray[np.float64]:
        """Return the weight of all words of each name, summed in their order."""
        names = np.repeat(np.arange(len(self._sizes)), self._sizes)
        return np.bincount(names, self._weights[self._words], minlength=len(self._sizes))


def best(ids: Ids, scores: np.ndarray, k: int, rank: Callable[[Ids], Ids] = lambda ids: ids) -> Ids:
    """Return the ids of the ``k`` highest scores; equal ones in the order of their ranks."""
    if k <= 0 or not len(ids):
        return np.empty(0, np.int64)
    if k < len(ids):
        least = np.partition(scores, len(ids) - k)[len(ids) - k]
        near = scores >= least
        ids, scores = ids[near], scores[near]
    return ids[np.lexsort((rank(ids), -scores))[:k]]
