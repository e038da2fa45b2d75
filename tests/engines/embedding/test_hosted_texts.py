"""Texts that are asked of servers: who asks, who waits for whom, and what is cached."""

from __future__ import annotations

import asyncio
import gc
import threading

import numpy as np
import pytest

from rag_accel.engines.embedding.hosted_texts import CallKey, CallReport, HostedTexts, Rows, rows_of
from rag_accel.testing import ManualClock

MIB = 2**20


def key(*texts: str, group: str = "g", role: str = "query") -> CallKey:
    return (group, role, texts)


def rows(*numbers: float) -> Rows:
    return [np.array([number, 0.1]) for number in numbers]


def answer(texts: HostedTexts, asked: CallKey, vectors: Rows) -> None:
    """Ask for texts that nobody else asks for."""
    turn = texts.begin(asked, None)
    turn.end(lambda: vectors)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def texts(clock: ManualClock) -> HostedTexts:
    """Give a cache of vectors that are used for ten seconds."""
    return HostedTexts(MIB, 10.0, clock.now)


def test_a_group_that_has_ended_is_asked_alone_again(texts: HostedTexts) -> None:
    turns = [texts.begin(key(text), None) for text in "abc"]
    for turn in turns:
        turn.end(None)
        turn.end(None)  # as an interrupt may have it
    assert texts.begin(key("d"), None).is_alone


@pytest.mark.parametrize(
    "other", [key("a", "b"), key("b"), key("a", role="document"), key("a", group="h")]
)
def test_other_texts_roles_and_groups_do_not_wait(texts: HostedTexts, other: CallKey) -> None:
    _first = texts.begin(key("a"), None)
    assert texts.begin(other, None).leader is None


def test_a_turn_that_is_lost_lets_nobody_wait(texts: HostedTexts) -> None:
    first, second = texts.begin(key("a"), None), texts.begin(key("a"), None)
    del first
    gc.collect()
    assert second.leader is not None
    assert second.leader.rows.result(0) is None
    assert texts.begin(key("b"), None).is_alone


def test_nobody_waits_for_another_loop() -> None:
    texts = HostedTexts(MIB, 10.0)
    one, two = asyncio.new_event_loop(), asyncio.new_event_loop()
    try:
        _first = texts.begin(key("a"), one)
        assert texts.begin(key("a"), one).leader is not None
        assert texts.begin(key("a"), two).leader is None
        assert texts.begin(key("a"), None).leader is None
        _in_a_thread = texts.begin(key("b"), None)
        assert texts.begin(key("b"), two).leader is not None
    finally:
        one.close()
        two.close()


def test_vectors_are_cached_by_text(texts: HostedTexts) -> None:
    answer(texts, key("a", "b"), rows(1.0, 2.0))
    found = texts.begin(key("b"), None).rows
    assert found is not None
    assert found[0].tolist() == [2.0, 0.1]
    assert texts.begin(key("b", "c"), None).rows is None
    assert texts.begin(key("b", role="document"), None).rows is None
    assert texts.begin(key("b", group="h"), None).rows is None


def test_a_vector_is_asked_for_again_after_its_time(texts: HostedTexts, clock: ManualClock) -> None:
    answer(texts, key("a"), rows(1.0))
    clock.advance(9.0)
    assert texts.begin(key("a"), None).rows is not None
    clock.advance(2.0)
    assert texts.begin(key("a"), None).rows is None


def test_no_more_is_cached_than_fits(clock: ManualClock) -> None:
    texts = HostedTexts(1000, 10.0, clock.now)
    for text in "abc":
        answer(texts, key(text), rows(1.0))
    assert texts.begin(key("a"), None).rows is None
    assert texts.begin(key("c"), None).rows is not None


def test_vectors_that_nobody_asks_for_again_go_after_their_time(clock: ManualClock) -> None:
    texts = HostedTexts(MIB, 10.0, clock.now)
    answer(texts, key("a"), rows(1.0))
    clock.advance(11.0)
    answer(texts, key("b"), rows(1.0))
    assert list(texts._vectors) == [("g", "query", "b")]


def test_forgotten_texts_are_asked_for_again(texts: HostedTexts) -> None:
    answer(texts, key("a", "b"), rows(1.0, 2.0))
    texts.forget(["a"])
    assert texts.begin(key("a"), None).rows is None
    assert texts.begin(key("b"), None).rows is not None


def test_another_model_behind_the_name_empties_its_cache(texts: HostedTexts) -> None:
    texts.note("g", CallReport(1, 0.1, 0.01, "old"))
    answer(texts, key("a"), rows(1.0))
    answer(texts, key("a", group="h"), rows(1.0))
    texts.note("g", CallReport(1, 0.1, 0.01, "old"))
    assert texts.begin(key("a"), None).rows is not None
    under_way = texts.begin(key("b"), None)
    texts.note("g", CallReport(1, 0.1, 0.01, "new"))
    under_way.end(lambda: rows(2.0))
    assert texts.begin(key("a"), None).rows is None
    assert texts.begin(key("b"), None).rows is None  # whichever of them has answered
    assert texts.begin(key("a", group="h"), None).rows is not None


def test_another_number_of_components_empties_the_cache(texts: HostedTexts) -> None:
    answer(texts, key("a"), rows(1.0))
    answer(texts, key("b"), [np.array([1.0, 2.0, 3.0])])
    assert texts.begin(key("a"), None).rows is None


def test_what_costs_more_together_is_asked_alone(texts: HostedTexts) -> None:
    for size, seconds in ((1, 0.01), (32, 1.0)):
        texts.note("g", CallReport(size, seconds, 0.001))
    _first = texts.begin(key("a"), None)
    assert texts.begin(key("b"), None).is_alone


def test_a_fork_forgets_what_others_ask(texts: HostedTexts) -> None:
    first = texts.begin(key("a"), None)
    texts.renew()
    again = texts.begin(key("a"), None)
    assert again.leader is None
    assert again.is_alone
    first.end(lambda: rows(1.0))


def test_threads_count_right(texts: HostedTexts) -> None:
    def ask(number: int) -> None:
        for turn in range(200):
            made = texts.begin(key(f"{number} {turn % 7}"), None, may_follow=False)
            made.end((lambda: rows(1.0)) if turn % 3 else None)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts.begin(key("x"), None).is_alone


@pytest.mark.parametrize("vectors", [[[1]], [(1.0,)], [[]], [None]])
def test_what_is_no_list_of_floats_is_not_cached(vectors: list[object]) -> None:
    assert rows_of(vectors) is None
