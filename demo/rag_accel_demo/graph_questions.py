"""Questions about a graph in all their kinds, and streams of questions drawn with repeats.

There are four kinds: one relation from an entity, two relations in a row, what two entities have
in common, and whether they have anything in common.
"""

from __future__ import annotations

import random
from bisect import bisect
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

from rag_accel.errors import ConfigError
from rag_accel.sample.graph_questions import (
    MAX_ANSWERS,
    GraphQuestion,
    QuestionKind,
    chain_questions,
    edges_by_relation,
)
from rag_accel.sample.questions import in_turn, require_positive
from rag_accel.sample.source_triples import (
    CALLS,
    IMPORTS,
    INHERITS_FROM,
    RAISES,
    TAKES_PARAMETER,
    Triple,
)

YES, NO = "yes", "no"

_T = TypeVar("_T")

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


def graph_questions(
    triples: Iterable[Triple], count: int, seed: int = 0
) -> tuple[GraphQuestion, ...]:
    """Make ``count`` distinct questions, the four kinds in turn; a seed always draws the same.

    Raises:
        ConfigError: if ``count`` is below 1, or the graph is too small for as many.
    """
    require_positive(count)
    distinct_triples = list(dict.fromkeys(triples))
    turned = ((tail, relation, head) for head, relation, tail in distinct_triples)
    facts = _Facts(edges_by_relation(distinct_triples), edges_by_relation(turned))
    draw = random.Random(seed)
    chains = chain_questions(distinct_triples)
    kinds = [
        _shuffled([question for question in chains if question.kind is kind], draw)
        for kind in (QuestionKind.ONE_HOP, QuestionKind.TWO_HOPS)
    ]
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

    def shared(self, pair: tuple[str, str], relation: str) -> set[str]:
        """Return the tails that a relation has from both entities."""
        one, other = (set(self.tails[relation].get(entity, ())) for entity in pair)
        return one & other


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
    shared = facts.shared(pair, relation) if pair else set[str]()
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
    answer = YES if facts.shared(pair, relation) else NO
    text = PAIR_TEXTS[relation][1].format(*pair)
    return GraphQuestion(text, QuestionKind.COMPARISON, pair, (relation,), (answer,))


def _relatives(facts: _Facts, relation: str, draw: random.Random) -> tuple[str, str] | None:
    """Draw a tail, then two of its heads; None if it has only one."""
    heads = draw.choice(list(facts.heads[relation].values()))
    return _two(heads, draw) if len(heads) > 1 else None


def _two(names: Sequence[str], draw: random.Random) -> tuple[str, str]:
    one, other = draw.sample(names, 2)
    return one, other


def _shuffled(items: Sequence[_T], draw: random.Random) -> list[_T]:
    return draw.sample(items, len(items))
