"""Entities by the words of their names, weighted by how rare a word is."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from rag_accel.engines.knowledge.protocol import Ids

_WORD = re.compile(r"[^\W_]+")


def words_of(text: str) -> tuple[str, ...]:
    """Return the distinct words of a text, letters and digits only, whatever their case."""
    return tuple(dict.fromkeys(_WORD.findall(text.casefold())))


class NameWords:
    """The words of all names, and which names have them.

    A name's score is the weight of the words it shares times the part of its own weight that they
    are: of two names that share the same words, the shorter one is meant.

    Args:
        names: of the entities, by id.
    """

    def __init__(self, names: Sequence[str]) -> None:
        holders: dict[str, list[int]] = {}
        for place, name in enumerate(names):
            for word in words_of(name):
                holders.setdefault(word, []).append(place)
        self._num = len(names)
        self._holders = {word: np.asarray(ids, np.int64) for word, ids in holders.items()}
        self._weights = {word: math.log1p(self._num / len(ids)) for word, ids in holders.items()}
        self._totals = np.zeros(self._num)
        for word, ids in self._holders.items():
            self._totals[ids] += self._weights[word]

    def find(self, text: str, k: int) -> Ids:
        """Return the ``k`` entities whose names share most with a text; without a word, none."""
        shared = np.zeros(self._num)
        for word in words_of(text):
            if word in self._holders:
                shared[self._holders[word]] += self._weights[word]
        some = np.flatnonzero(shared)
        scores = shared[some] ** 2 / self._totals[some]
        return best(some, scores, k)


def best(ids: Ids, scores: np.ndarray, k: int) -> Ids:
    """Return the ids of the ``k`` highest scores; equal ones in the order of ids."""
    if k <= 0 or not len(ids):
        return np.empty(0, np.int64)
    if k < len(ids):
        least = np.partition(scores, len(ids) - k)[len(ids) - k]
        near = scores >= least
        ids, scores = ids[near], scores[near]
    return ids[np.lexsort((ids, -scores))[:k]]
