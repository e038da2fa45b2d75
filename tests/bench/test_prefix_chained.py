"""The look-up over prefix-chained keys does what its definition says."""

from __future__ import annotations

import pytest

from bench.baselines.prefix_chained import PrefixChained, SizedText

A, B, C, D = (SizedText(number, 10) for number in range(4))


def held(entries: int | None, **options: bool) -> PrefixChained:
    """Return a store of so many entries of ten tokens, two bytes each."""
    return PrefixChained(None if entries is None else 20 * entries, 2, **options)


def test_what_was_never_asked_for_is_missed_and_then_found() -> None:
    store = held(4)
    assert store.missed((A, B)) == 20
    assert store.missed((A, B)) == 0
    assert (len(store), store.held_bytes) == (2, 40)


def test_a_text_is_found_behind_others_and_kept_once_more() -> None:
    store = held(8)
    store.missed((A, B))
    assert store.missed((B, A)) == 0
    assert (len(store), store.num_texts, store.held_bytes) == (4, 2, 80)


def test_a_common_beginning_is_kept_once() -> None:
    store = held(8)
    store.missed((A, B, C))
    store.missed((A, B, D))
    assert (len(store), store.num_texts) == (4, 4)


def test_copies_push_texts_out_that_would_all_have_room_once() -> None:
    store = held(3)
    assert store.missed((A, B, C)) == 30
    assert store.missed((B, A)) == 0
    assert store.num_texts == 2
    assert store.missed((C,)) == 10


def test_the_entry_used_longest_ago_goes_first() -> None:
    store = held(2)
    store.missed((A,))
    store.missed((B,))
    store.missed((A,))
    store.missed((C,))
    assert (store.missed((A,)), store.missed((B,))) == (0, 10)


def test_of_several_copies_the_latest_is_used() -> None:
    store = held(3)
    store.missed((A, B))
    store.missed((B,))  # A, B behind A, B; of B the latter is the latest
    store.missed((C, B))  # C, B behind C, and the B that was found
    assert store.missed((A,)) == 10


def test_without_touching_the_entry_kept_longest_ago_goes_first() -> None:
    store = held(2, touches=False)
    store.missed((A,))
    store.missed((B,))
    store.missed((A,))
    store.missed((C,))
    assert (store.missed((B,)), store.missed((A,))) == (0, 10)


def test_without_a_limit_nothing_goes() -> None:
    store = held(None)
    for turn in range(50):
        store.missed((SizedText(turn, 10), A, B))
    assert (len(store), store.held_bytes) == (150, 3000)


@pytest.mark.parametrize("entries", [1, 2, 5])
def test_bytes_stay_within_the_limit(entries: int) -> None:
    store = held(entries)
    for turn in range(20):
        store.missed((A, SizedText(turn, 5), B))
        assert store.held_bytes <= 20 * entries


def test_what_is_larger_than_the_limit_is_not_kept() -> None:
    store = held(1)
    store.missed((A,))
    assert store.missed((SizedText(9, 11),)) == 11
    assert store.missed((A,)) == 0
