"""The documents that a request's searches have found, for the prompts that are made of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any

#: Yields the id and a text of each document in what a leaf returned, in every form in which it may
#: stand in a prompt; nothing for what holds none.
ReadDocuments = Callable[[Any], Iterable[tuple[str, str]]]

MOST_RESULTS = 32
MOST_TEXTS = 512


class RetrievedDocuments:
    """Results of a request's searches and rerankings, the latest ones; any thread may add some.

    They are kept as they were returned and read only if a prompt asks for them.
    """

    __slots__ = ("_asked", "_numbers", "_results")

    def __init__(self) -> None:
        self._numbers = count()
        self._results: deque[tuple[int, ReadDocuments, Any]] = deque(maxlen=MOST_RESULTS)
        self._asked: deque[str] = deque(maxlen=MOST_RESULTS)

    def add(self, read: ReadDocuments, result: Any, questions: Iterable[str] = ()) -> None:
        """Add a leaf's result, and its questions."""
        self._results.append((next(self._numbers), read, result))
        self._asked.extend(questions)

    @property
    def asked(self) -> frozenset[str]:
        """Return the latest questions, without white space around them."""
        return frozenset(question.strip() for question in list(self._asked))

    def later(self, first: int) -> Iterator[tuple[int, list[str]]]:
        """Yield the number and the texts of each result from the one numbered ``first`` on."""
        for number, read, result in list(self._results):
            if number >= first:
                yield number, [text for _, text in read(result)]

    def texts(self) -> Iterator[tuple[str, str]]:
        """Yield ids and texts, each text once, those found last first; at most ``MOST_TEXTS``."""
        told: set[str] = set()
        for _, read, result in reversed(list(self._results)):
            for document, text in read(result):
                if text not in told:
                    told.add(text)
                    yield document, text
                if len(told) >= MOST_TEXTS:
                    return
