"""Questions with known answers, made of the triples of a graph, and streams of such questions.

There are four kinds: one relation from an entity, two relations in a row, what two entities have
in common, and whether they have anything in common. Each question tells its seed entities and its
relations, and its answers can be found again by following them.
"""

from __future__ import annotations

import random
from bisect import bisect
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from typing import TypeVar

from rag_accel.errors import ConfigError
from rag_accel.sample.questions import in_turn, require_positive
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
YES, NO = "yes", "no"

_T = TypeVar("_T")

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

#: Text of an intersection, then of a comparison.
PAIR_TEXTS: Mapping[str, tuple[str, str]] = {
    RAISES: (
        "Which exceptions do both {} and {} raise?",
        "Is there an exception that both {} and {} raise?",
    ),
    CALLS: (
        "What do both {} and {} call?",
        "Is there anything that both {} and {} call?",
    ),
    INHERITS_FROM: (
        "Which classes do both {} and {} inherit from?",
        "Do {} and {} inherit from the same class?",
    ),
    IMPORTS: (
        "Which modules do both {} and {} import?",
        "Is there a module that both {} and {} import?",
    ),
    TAKES_PARAMETER: (
        "Which parameters do both {} and {} take?",
        "Do {} and {} have a parameter of the same name?",
    ),
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


def graph_questions(
    triples: Iterable[Triple], count: int, seed: int = 0
) -> tuple[GraphQuestion, ...]:
    """Make ``count`` distinct questions, the four kinds in turn; a seed always draws the same.

    Raises:
        ConfigError: if ``count`` is below 1, or the graph is too small for as many.
    """
    require_positive(count)
    facts = _Facts.of(triples)
    draw = random.Random(seed)
    hops = _hop_questions(facts)
    kinds = [_shuffled(hops[kind], draw) for kind in (QuestionKind.ONE_HOP, QuestionKind.TWO_HOPS)]
    kinds += [_pair_questions(facts, make, draw, count) for make in (_intersection, _comparison)]
    distinct: dict[str, GraphQuestion] = {}
    for question in in_turn(kinds):
        distinct.setdefault(question.text, question)
        if len(distinct) == count:
            return tuple(distinct.values())
    raise ConfigError(
        "too few questions can be made of the graph",
        where="count",
        found=count,
        valid=f"at most {len(distinct)}",
    )


def chain_questions(triples: Iterable[Triple]) -> tuple[GraphQuestion, ...]:
    """Return every question of one or two relations with 1 to ``MAX_ANSWERS`` answers.

    They come by relations, in the order of ``CHAIN_TEXTS``, then in the order of the heads.
    """
    hops = _hop_questions(_Facts.of(triples))
    return tuple(hops[QuestionKind.ONE_HOP] + hops[QuestionKind.TWO_HOPS])


def uniform_stream(
    questions: Sequence[GraphQuestion], count: int, seed: int = 0
) -> tuple[GraphQuestion, ...]:
    """Draw ``count`` questions about seed entities that are all as likely, with repeats."""
    return zipf_stream(questions, count, seed, exponent=0.0)


def zipf_stream(
    questions: Sequence[GraphQuestion], count: int, seed: int = 0, exponent: float = 1.0
) -> tuple[GraphQuestion, ...]:
    """Draw ``count`` questions about seed entities of which few are asked about often.

    The entity at rank r is drawn with a probability in proportion to ``r ** -exponent``, and then
    one of the questions whose first seed it is. Ranks are drawn as well. So an entity that is asked
    about again is often asked another question.

    Raises:
        ConfigError: if there are no questions, or ``count`` is below 1.
    """
    require_positive(count)
    about: dict[str, list[GraphQuestion]] = defaultdict(list)
    for question in questions:
        about[question.seeds[0]].append(question)
    if not about:
        raise ConfigError("no questions to draw from", where="questions", valid="at least one")
    draw = random.Random(seed)
    ranked = _shuffled(list(about.values()), draw)
    bounds = list(accumulate(rank**-exponent for rank in range(1, len(ranked) + 1)))
    drawn = (bisect(bounds, draw.random() * bounds[-1], hi=len(ranked) - 1) for _ in range(count))
    return tuple(draw.choice(ranked[place]) for place in drawn)


@dataclass(frozen=True, slots=True)
class _Facts:
    """Tails by relation and head, and heads by relation and tail, in the order of the triples."""

    tails: Mapping[str, Mapping[str, list[str]]]
    heads: Mapping[str, Mapping[str, list[str]]]

    @classmethod
    def of(cls, triples: Iterable[Triple]) -> _Facts:
        tails: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        heads: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for head, relation, tail in dict.fromkeys(triples):
            tails[relation][head].append(tail)
            heads[relation][tail].append(head)
        return cls(tails, heads)

    def reached(self, entity: str, relations: Chain) -> set[str]:
        found = {entity}
        for relation in relations:
            tails = self.tails.get(relation, {})
            found = {tail for head in found for tail in tails.get(head, ())}
        return found


def _hop_questions(facts: _Facts) -> dict[QuestionKind, list[GraphQuestion]]:
    found: dict[QuestionKind, list[GraphQuestion]] = defaultdict(list)
    for relations, text in CHAIN_TEXTS.items():
        kind = QuestionKind.ONE_HOP if len(relations) == 1 else QuestionKind.TWO_HOPS
        for entity in facts.tails.get(relations[0], ()):
            answers = facts.reached(entity, relations)
            if 1 <= len(answers) <= MAX_ANSWERS:
                found[kind].append(
                    GraphQuestion(
                        text.format(entity), kind, (entity,), relations, tuple(sorted(answers))
                    )
                )
    return found


_Make = Callable[[_Facts, str, random.Random], GraphQuestion | None]
#: Tries for each question wanted: a pair may share too much, or what it should not share.
_TRIES = 20


def _pair_questions(
    facts: _Facts, make: _Make, draw: random.Random, count: int
) -> list[GraphQuestion]:
    """Return up to ``count`` questions about two entities, the relations in turn."""
    relations = [relation for relation in PAIR_TEXTS if len(facts.tails.get(relation, ())) > 1]
    found: dict[str, GraphQuestion] = {}
    for turn in range(_TRIES * count if relations else 0):
        question = make(facts, relations[turn % len(relations)], draw)
        if question is not None:
            found.setdefault(question.text, question)
        if len(found) == count:
            break
    return list(found.values())


def _intersection(facts: _Facts, relation: str, draw: random.Random) -> GraphQuestion | None:
    pair = _relatives(facts, relation, draw)
    shared = _shared(facts, pair, relation) if pair else set[str]()
    if pair is None or not 1 <= len(shared) <= MAX_ANSWERS:
        return None
    text = PAIR_TEXTS[relation][0].format(*pair)
    return GraphQuestion(text, QuestionKind.INTERSECTION, pair, (relation,), tuple(sorted(shared)))


def _comparison(facts: _Facts, relation: str, draw: random.Random) -> GraphQuestion | None:
    """Return a question about two entities: as often two that share something as any two."""
    if draw.random() < 0.5:
        pair = _relatives(facts, relation, draw)
    else:
        pair = _two(list(facts.tails[relation]), draw)
    if pair is None:
        return None
    answer = YES if _shared(facts, pair, relation) else NO
    text = PAIR_TEXTS[relation][1].format(*pair)
    return GraphQuestion(text, QuestionKind.COMPARISON, pair, (relation,), (answer,))


def _relatives(facts: _Facts, relation: str, draw: random.Random) -> tuple[str, str] | None:
    """Draw a tail, then two of its heads; None if it has only one."""
    heads = draw.choice(list(facts.heads[relation].values()))
    return _two(heads, draw) if len(heads) > 1 else None


def _two(names: Sequence[str], draw: random.Random) -> tuple[str, str]:
    one, other = draw.sample(names, 2)
    return one, other


def _shared(facts: _Facts, pair: tuple[str, str], relation: str) -> set[str]:
    one, other = pair
    return facts.reached(one, (relation,)) & facts.reached(other, (relation,))


def _shuffled(items: Sequence[_T], draw: random.Random) -> list[_T]:
    return draw.sample(items, len(items))
