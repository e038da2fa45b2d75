"""A prefix cache takes beginnings over, and ordering for it makes them as long as they can be."""

from __future__ import annotations

from itertools import permutations
from random import Random

import pytest

from bench.baselines.prefix_chained import SizedText
from bench.baselines.prefix_tree import PrefixTree, ReuseOrdered

A, B, C, D, E = (SizedText(number, 10) for number in range(5))


def tree(texts: int) -> PrefixTree:
    """Return a tree of so many texts of ten tokens, two bytes each."""
    return PrefixTree(20 * texts, 2)


def test_a_text_is_found_behind_its_own_beginning_only() -> None:
    cache = tree(9)
    assert cache.missed((A, B, C)) == 30
    assert cache.missed((A, B, D)) == 10
    assert cache.missed((B, A)) == 20
    assert cache.missed((A, B, C)) == 0


def test_a_common_beginning_is_kept_once() -> None:
    cache = tree(9)
    cache.missed((A, B, C))
    cache.missed((A, B, D))
    assert (len(cache), cache.held_bytes) == (4, 80)


def test_the_leaf_used_longest_ago_goes_first() -> None:
    cache = tree(4)
    cache.missed((A, B))
    cache.missed((C, D))
    cache.missed((A,))
    cache.missed((E,))  # in place of B: it was used before A, C and D were
    assert cache.missed((C, D)) == 0
    assert cache.missed((A, B)) == 10


def test_a_prompt_larger_than_the_cache_keeps_its_beginning() -> None:
    cache = tree(2)
    cache.missed((A, B, C))
    assert (len(cache), cache.missed((A, B, C))) == (2, 10)


@pytest.mark.parametrize("texts", [1, 3, 6])
def test_bytes_stay_within_the_limit(texts: int) -> None:
    cache, random = tree(texts), Random(0)
    for _ in range(100):
        cache.missed(random.sample((A, B, C, D, E), 3))
        assert cache.held_bytes == 20 * len(cache) <= 20 * texts


def test_ordered_texts_begin_as_an_earlier_prompt_did() -> None:
    cache = ReuseOrdered(20 * 20, 2)
    assert cache.missed((A, B, C)) == 30
    assert cache.ordered((C, D, A, B)) == [A, B, C, D]
    assert cache.missed((C, D, A, B)) == 10


def test_others_keep_their_order_behind_it() -> None:
    cache = ReuseOrdered(20 * 20, 2)
    cache.missed((A, B))
    assert cache.ordered((E, D, A, C)) == [A, E, D, C]


def test_the_longest_beginning_is_that_of_most_tokens() -> None:
    large = SizedText(9, 50)
    cache = ReuseOrdered(1000, 2)
    cache.missed((A, B))
    cache.missed((large,))
    assert cache.ordered((A, B, large))[0] == large


def test_no_other_order_takes_more_over() -> None:
    random = Random(1)
    prompts = [random.sample((A, B, C, D, E), 3) for _ in range(12)]
    for end in range(1, len(prompts)):
        counts: list[int] = []
        for order in permutations(prompts[end]):
            cache = PrefixTree(10_000, 2)
            for prompt in prompts[:end]:
                cache.missed(prompt)
            counts.append(cache.missed(order))
        cache = PrefixTree(10_000, 2)
        for prompt in prompts[:end]:
            cache.missed(prompt)
        taken = sum(one.tokens for one in cache.longest(prompts[end]))
        assert min(counts) == 30 - taken
