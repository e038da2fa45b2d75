"""The small functions between the stages of the workflows.

They are values: equal ones compare equal, so equal workflows are equal graphs. A graph reads whole
values only, so taking one item of a list, joining two texts or reading a list off a text is a
Function stage. All of them but conditions are declared pure, so that passes may let work of engines
go ahead of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rag_accel.engine_api import Document, ScoredDocument
from rag_accel.errors import ConfigError
from rag_accel.graph.item_lists import ItemReader, read_items
from rag_accel.graph.list_functions import (
    ItemFunction,
    ListFunction,
    PureFunction,
    UnionFunction,
    pure,
)


@dataclass(frozen=True, slots=True)
class Lines(PureFunction):
    """A function that reads at most ``limit`` items off a text: lines or JSON.

    Bullets, numbers and repeats are dropped.
    """

    limit: int
    __name__: ClassVar[str] = "lines"

    def __call__(self, text: str) -> tuple[str, ...]:
        return read_items(text, limit=self.limit)


@dataclass(frozen=True, slots=True)
class Questions(PureFunction):
    """A function that reads at most ``limit`` questions off a plan."""

    limit: int
    __name__: ClassVar[str] = "questions"

    def __call__(self, plan: str, question: str) -> tuple[str, ...]:
        """Return the questions; the one that was asked if the plan has none."""
        return Lines(self.limit)(plan) or (question,)


@dataclass(frozen=True, slots=True)
class Queries(ListFunction):
    """A function that reads exactly ``count`` search queries off a text."""

    count: int
    __name__: ClassVar[str] = "queries"

    def __call__(self, text: str, question: str) -> tuple[str, ...]:
        """Return the queries; the question stands in for those that are missing."""
        found = Lines(self.count)(text)
        return found + (question,) * (self.count - len(found))

    @property
    def item_count(self) -> int:
        return self.count

    def reader(self) -> ItemReader:
        return ItemReader(limit=self.count)


@dataclass(frozen=True, slots=True)
class Nth(ItemFunction):
    """A function that takes the item at ``place``, counted from 0."""

    place: int
    __name__: ClassVar[str] = "nth"

    def __call__(self, items: Sequence[Any]) -> Any:
        return items[self.place]

    @property
    def item_place(self) -> int:
        return self.place


@dataclass(frozen=True, slots=True)
class NthAlone(PureFunction):
    """A function that takes the item at ``place``, counted from 0, as a list of one.

    A list of one prints like a list.
    """

    place: int
    __name__: ClassVar[str] = "nth_alone"

    def __call__(self, items: Sequence[Any]) -> tuple[Any, ...]:
        return (items[self.place],)


@dataclass(frozen=True, slots=True)
class MoreQuestions:
    """A condition: ``again`` while questions are unanswered and ``is_done`` is not met.

    Otherwise it is ``then``. ``is_done`` is called with the notes so far.
    """

    again: str
    then: str
    is_done: Callable[[Sequence[str]], bool] | None
    __name__: ClassVar[str] = "more_questions"

    def __call__(self, values: Mapping[str, Any]) -> str:
        notes, questions = values["notes"], values["questions"]
        if len(notes) >= len(questions) or (self.is_done is not None and self.is_done(notes)):
            return self.then
        return self.again


@dataclass(frozen=True, slots=True)
class Verdict:
    """A condition: ``search`` or ``keep`` by the verdict of a judge."""

    search: str
    keep: str
    wants_search: Callable[[str], bool]
    __name__: ClassVar[str] = "verdict"

    def __call__(self, values: Mapping[str, Any]) -> str:
        return self.search if self.wants_search(values["verdict"]) else self.keep


def wants_search(verdict: str) -> bool:
    """Tell whether a judge's reply asks for a search: unless it begins with the word ANSWER."""
    return re.match(r"\W*answer\b", verdict, re.IGNORECASE) is None


@pure
def as_it_is(value: Any) -> Any:
    return value


@pure
def joined(one: str, other: str) -> str:
    """Return two texts on lines of their own."""
    return f"{one}\n{other}"


@pure
def paragraphs(one: str, other: str) -> str:
    """Return two texts with an empty line between them."""
    return f"{one}\n\n{other}"


@pure
def no_notes() -> tuple[str, ...]:
    """Return the notes before the first round."""
    return ()


@pure
def next_question(questions: Sequence[str], notes: Sequence[str]) -> str:
    """Return the first question that no note answers yet."""
    return questions[len(notes)]


@pure
def noted(notes: Sequence[str], question: str, reply: str) -> tuple[str, ...]:
    return (*notes, f"Question: {question}\nAnswer: {reply}")


@pure
def first_of(items: Sequence[Any]) -> tuple[Any, ...]:
    """Return the first item as a list of one, or of none."""
    return tuple(items[:1])


@pure
def rest_of(items: Sequence[Any]) -> tuple[Any, ...]:
    """Return the items after the first."""
    return tuple(items[1:])


@dataclass(frozen=True, slots=True)
class Merged(UnionFunction):
    """A function that joins the documents of several searches, each once, in the order found."""

    __name__: ClassVar[str] = "merged"

    def __call__(self, *found: Sequence[ScoredDocument | Document]) -> tuple[Any, ...]:
        kept: dict[str, Any] = {}
        for hit in (hit for hits in found for hit in hits):
            kept.setdefault(hit.document.id if isinstance(hit, ScoredDocument) else hit.id, hit)
        return tuple(kept.values())


merged = Merged()


def require_count(name: str, value: int, *, low: int = 1) -> None:
    """Raise ConfigError unless a bound is an integer from ``low``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise ConfigError(
            "bad bound of a workflow", where=name, found=repr(value), valid=f"integer from {low}"
        )
