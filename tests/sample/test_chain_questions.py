"""Questions of one or two relations have the answers that the triples of a graph give."""

from __future__ import annotations

from rag_accel.sample import LibraryGraph, QuestionKind, chain_questions
from rag_accel.sample.graph_questions import CHAIN_TEXTS
from rag_accel.sample.source_triples import CALLS, RAISES, RELATIONS


def test_answers_are_reached_by_following_the_relations() -> None:
    triples = [("f", CALLS, "g"), ("g", RAISES, "B"), ("g", RAISES, "A"), ("g", RAISES, "A")]
    questions = chain_questions(triples)
    assert [(one.kind, one.seeds, one.relations, one.answers) for one in questions] == [
        (QuestionKind.ONE_HOP, ("g",), (RAISES,), ("A", "B")),
        (QuestionKind.ONE_HOP, ("f",), (CALLS,), ("g",)),
        (QuestionKind.TWO_HOPS, ("f",), (CALLS, RAISES), ("A", "B")),
    ]
    assert questions[2].text == "Which exceptions can be raised by what f calls?"


def test_thousands_of_chains_use_every_text(library: LibraryGraph) -> None:
    chains = chain_questions(library.triples)
    assert len(chains) > 10_000
    assert {one.relations for one in chains} == set(CHAIN_TEXTS)
    assert {relation for one in chains for relation in one.relations} == set(RELATIONS)
