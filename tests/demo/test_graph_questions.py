"""Questions about a graph have the answers that its triples give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import pytest

from rag_accel.errors import ConfigError
from rag_accel.sample import GraphQuestion, LibraryGraph, QuestionKind, chain_questions
from rag_accel.sample.graph_questions import MAX_ANSWERS
from rag_accel.sample.source_triples import Triple
from rag_accel_demo import graph_questions, uniform_stream, zipf_stream
from rag_accel_demo.graph_questions import NO, PAIR_TEXTS, YES


def followed(triples: Sequence[Triple], entity: str, relations: Iterable[str]) -> set[str]:
    """Follow the relations by reading every triple at every hop."""
    found = {entity}
    for relation in relations:
        found = {tail for head, name, tail in triples if name == relation and head in found}
    return found


def gold(triples: Sequence[Triple], question: GraphQuestion) -> set[str]:
    """Answer a question by brute force."""
    reached = [followed(triples, one, question.relations) for one in question.seeds]
    shared = set[str].intersection(*reached)
    if question.kind is QuestionKind.COMPARISON:
        return {YES if shared else NO}
    return shared


@pytest.fixture(scope="module")
def questions(library: LibraryGraph) -> tuple[GraphQuestion, ...]:
    return graph_questions(library.triples, 800, seed=1)


@pytest.fixture(scope="module")
def chains(library: LibraryGraph) -> tuple[GraphQuestion, ...]:
    return chain_questions(library.triples)


# Questions ---------------------------------------------------------------------------------------


def test_every_question_of_a_small_graph_has_the_answers_of_its_triples(
    library: LibraryGraph,
) -> None:
    triples = library.triples[:1_000]
    for question in (*chain_questions(triples), *graph_questions(triples, 300)):
        assert set(question.answers) == gold(triples, question), question


def test_the_kinds_come_in_turn(questions: tuple[GraphQuestion, ...]) -> None:
    assert [one.kind for one in questions[:8]] == 2 * list(QuestionKind)
    assert set(Counter(one.kind for one in questions).values()) == {200}


def test_questions_are_distinct_and_read_as_sentences(
    questions: tuple[GraphQuestion, ...],
) -> None:
    texts = [one.text for one in questions]
    assert len(set(texts)) == len(texts)
    assert all(text[0].isupper() and text.endswith("?") and "{" not in text for text in texts)


def test_questions_name_their_seeds(questions: tuple[GraphQuestion, ...]) -> None:
    assert all(seed in one.text for one in questions for seed in one.seeds)
    assert all(len(set(one.seeds)) == len(one.seeds) for one in questions)


def test_answers_are_few_sorted_and_distinct(questions: tuple[GraphQuestion, ...]) -> None:
    assert all(1 <= len(one.answers) <= MAX_ANSWERS for one in questions)
    assert all(list(one.answers) == sorted(set(one.answers)) for one in questions)


def test_comparisons_are_answered_both_ways(questions: tuple[GraphQuestion, ...]) -> None:
    found = Counter(one.answers for one in questions if one.kind is QuestionKind.COMPARISON)
    assert set(found) == {(YES,), (NO,)}
    assert min(found.values()) > 40


def test_a_seed_always_draws_the_same(
    library: LibraryGraph, questions: tuple[GraphQuestion, ...]
) -> None:
    assert graph_questions(library.triples, 800, seed=1) == questions
    assert graph_questions(library.triples, 800, seed=2) != questions


def test_pairs_use_every_text(questions: tuple[GraphQuestion, ...]) -> None:
    for kind in (QuestionKind.INTERSECTION, QuestionKind.COMPARISON):
        used = {one.relations[0] for one in questions if one.kind is kind}
        assert used == set(PAIR_TEXTS)


def test_a_triple_that_repeats_changes_nothing(library: LibraryGraph) -> None:
    triples = library.triples[:1_000]
    assert graph_questions(triples * 2, 100) == graph_questions(triples, 100)


@pytest.mark.parametrize("triples", [[], [("a", "raises", "b")]])
def test_a_graph_too_small_is_an_error(triples: list[Triple]) -> None:
    with pytest.raises(ConfigError, match="too few questions"):
        graph_questions(triples, 2)


def test_no_questions_are_an_error(library: LibraryGraph) -> None:
    with pytest.raises(ConfigError, match="count"):
        graph_questions(library.triples, 0)


# Streams -----------------------------------------------------------------------------------------


def of_a_thousand_entities(chains: Sequence[GraphQuestion]) -> list[GraphQuestion]:
    kept = set(list(dict.fromkeys(one.seeds[0] for one in chains))[:1000])
    return [one for one in chains if one.seeds[0] in kept]


def share_of_the_top_fifth(stream: Sequence[GraphQuestion]) -> float:
    counts = Counter(one.seeds[0] for one in stream)
    return sum(count for _, count in counts.most_common(200)) / len(stream)


def test_a_fifth_of_the_entities_takes_most_of_a_zipf_stream(
    chains: tuple[GraphQuestion, ...],
) -> None:
    stream = zipf_stream(of_a_thousand_entities(chains), 20_000, seed=3)
    # of 1,000 ranks the first 200 have 78.5 % of the probability
    assert 0.76 < share_of_the_top_fifth(stream) < 0.81


def test_entities_are_asked_about_alike_in_a_uniform_stream(
    chains: tuple[GraphQuestion, ...],
) -> None:
    stream = uniform_stream(of_a_thousand_entities(chains), 20_000, seed=3)
    assert 0.2 < share_of_the_top_fifth(stream) < 0.3
    assert len({one.seeds[0] for one in stream}) == 1000


def test_an_entity_is_asked_different_questions(chains: tuple[GraphQuestion, ...]) -> None:
    stream = zipf_stream(chains, 2_000, seed=5)
    asked: dict[str, set[str]] = {}
    for one in stream:
        asked.setdefault(one.seeds[0], set()).add(one.text)
    assert max(map(len, asked.values())) > 1


@pytest.mark.parametrize("stream", [uniform_stream, zipf_stream])
def test_a_stream_repeats_with_its_seed(chains: tuple[GraphQuestion, ...], stream) -> None:
    assert stream(chains, 50, 1) == stream(chains, 50, 1) != stream(chains, 50, 2)
    assert set(stream(chains, 50, 1)) <= set(chains)


@pytest.mark.parametrize("stream", [uniform_stream, zipf_stream])
def test_a_stream_of_nothing_is_an_error(chains: tuple[GraphQuestion, ...], stream) -> None:
    with pytest.raises(ConfigError, match="no questions"):
        stream([], 5)
    with pytest.raises(ConfigError, match="count"):
        stream(chains, 0)
