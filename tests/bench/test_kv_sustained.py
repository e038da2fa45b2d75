"""The suite on long streams counts what stores really miss, and its streams are as it says."""

from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("torch")

from bench.baselines.prefix_chained import SizedText
from bench.kv.sustained import TOKEN_BYTES, OurStore, Prompt, Shape, corpus, count, stream
from bench.suites.kv_sustained import OURS

A, B, C = (SizedText(number, 10) for number in range(3))


def prompts(shape: Shape, seed: int = 0) -> list[Prompt]:
    return list(stream(corpus(40, (8, 32)), shape, 200, 10, 1, 1.0, seed))


@pytest.mark.parametrize("shape", ["zipf", "uniform"])
def test_a_prompt_has_nine_known_texts_and_one_that_no_other_has(shape: Shape) -> None:
    found = prompts(shape)
    every = Counter(text.number for prompt in found for text in prompt)
    for prompt in found:
        once = [one for one in prompt if one.number >= 40]
        assert len({one.number for one in prompt}) == 10
        assert [every[one.number] for one in once] == [1]
    assert {prompt[-1].number >= 40 for prompt in found} == {True, False}


def test_of_a_zipf_stream_the_first_texts_are_asked_for_most() -> None:
    zipf, uniform = (
        Counter(text.number for prompt in prompts(shape) for text in prompt)
        for shape in ("zipf", "uniform")
    )
    assert zipf[0] > 3 * zipf[39]
    assert uniform[0] < 2 * uniform[39]


def test_our_store_is_asked_for_a_text_before_it_is_given_it() -> None:
    store = OurStore(3 * 10 * TOKEN_BYTES)
    assert [store.missed(prompt) for prompt in ((A, B), (B, A), (C, A))] == [20, 0, 10]
    assert store.held_bytes == 30 * TOKEN_BYTES


def test_our_full_store_keeps_a_text_at_its_second_request() -> None:
    store = OurStore(2 * 10 * TOKEN_BYTES)
    assert [store.missed(prompt) for prompt in ((A, B), (C,), (A, B), (C,), (C,))] == [
        *(20, 10, 0, 10, 0)
    ]


def test_shares_are_of_all_tokens_and_of_the_last_tenth() -> None:
    store = OurStore(10 * 10 * TOKEN_BYTES)
    counts = count("10 prompts", [(A,)] * 9 + [(B,)], {OURS: store.missed})
    rows = {row.metric: row.median for row in counts.rows()}
    assert rows == {
        "missed_tokens": 20,
        "missed_share": 0.2,
        "missed_share_of_last_tenth": 1.0,
    }
