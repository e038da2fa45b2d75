"""Questions with known answers, made of the triples of a graph.

Each question tells its seed entities and its relations, and its answers can be found again by
following them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from rag_accel.sample.source_triples import (
    ACCEPTS_TYPE,
    CALLS,
    DEFINES_CLASS,
    DEFINES_FUNCTION,
    HAS_METHOD,
    IMPORTS,
    INHERITS_FROM,
    RAISES,
    RETURNS,
    TAKES_PARAMETER,
    Triple,
)

#: A question with more answers asks for a list.
MAX_ANSWERS = 5

Chain = tuple[str, ...]
"""Relations, each followed from the entities that the one before has reached."""


class QuestionKind(Enum):
    """The way to the answer of a question."""

    ONE_HOP = "one hop"
    TWO_HOPS = "two hops"
    INTERSECTION = "intersection"
    COMPARISON = "comparison"


CHAIN_TEXTS: Mapping[Chain, str] = {
    (RAISES,): "Which exceptions does {} raise?",
    (CALLS,): "What does {} call?",
    (RETURNS,): "What does {} return?",
    (ACCEPTS_TYPE,): "Which types does {} accept?",
    (TAKES_PARAMETER,): "Which parameters does {} take?",
    (INHERITS_FROM,): "What does {} inherit from?",
    (HAS_METHOD,): "Which methods does {} have?",
    (DEFINES_CLASS,): "Which classes does {} define?",
    (DEFINES_FUNCTION,): "Which functions does {} define?",
    (IMPORTS,): "Which modules does {} import?",
    (CALLS, RAISES): "Which exceptions can be raised by what {} calls?",
    (CALLS, CALLS): "What is called by what {} calls?",
    (CALLS, TAKES_PARAMETER): "Which parameters does what {} calls take?",
    (CALLS, INHERITS_FROM): "From what do the classes that {} makes objects of inherit?",
    (RAISES, INHERITS_FROM): "From what do the exceptions that {} raises inherit?",
    (HAS_METHOD, RAISES): "Which exceptions do the methods of {} raise?",
    (HAS_METHOD, CALLS): "What do the methods of {} call?",
    (HAS_METHOD, RETURNS): "What do the methods of {} return?",
    (INHERITS_FROM, HAS_METHOD): "Which methods do the classes that {} inherits from have?",
    (INHERITS_FROM, INHERITS_FROM): "From what do the classes that {} inherits from inherit?",
    (DEFINES_CLASS, INHERITS_FROM): "From what do the classes that {} defines inherit?",
    (DEFINES_FUNCTION, RAISES): "Which exceptions do the functions that {} defines raise?",
    (IMPORTS, DEFINES_CLASS): "Which classes do the modules that {} imports define?",
}


@dataclass(frozen=True, slots=True)
class GraphQuestion:
    """A question about a graph, and its answers.

    Args:
        text: the question.
        kind: the way to its answer.
        seeds: entities that it names: one of a chain, else two.
        relations: to follow from every seed, one after the other.
        answers: the entities reached, sorted: from the seed, or from both; ``yes`` or ``no`` of a
            comparison.
    """

    text: str
    kind: QuestionKind
    seeds: tuple[str, ...]
    relations: Chain
    answers: tuple[str, ...]


def chain_questions(triples: Iterable[Triple]) -> tuple[GraphQuestion, ...]:
    """Return every question of one or two relations with 1 to ``MAX_ANSWERS`` answers.

    They come by relations, in the order of ``CHAIN_TEXTS``, then in the order of the heads.
    """
    tails = edges_by_relation(triples)
    questions: list[GraphQuestion] = []
    for relations, text in CHAIN_TEXTS.items():
        kind = QuestionKind.ONE_HOP if len(relations) == 1 else QuestionKind.TWO_HOPS
        for entity in tails.get(relations[0], ()):
            reached = {entity}
            for relation in relations:
                reached = {
                    tail for head in reached for tail in tails.get(relation, {}).get(head, ())
                }
            if 1 <= len(reached) <= MAX_ANSWERS:
                questions.append(
                    GraphQuestion(
                        text.format(entity), kind, (entity,), relations, tuple(sorted(reached))
                    )
                )
    return tuple(questions)


def edges_by_relation(triples: Iterable[Triple]) -> Mapping[str, Mapping[str, list[str]]]:
    """Return the tails by relation and head, each once, in the order of the triples."""
    tails: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for head, relation, tail in dict.fromkeys(triples):
        tails[relation][head].append(tail)
    return tails
