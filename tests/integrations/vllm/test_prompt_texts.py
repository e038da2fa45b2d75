"""Texts found in a prompt's tokens, also where tokens at their edges merged with others."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from live.served_models import make_tokenizer
from tokenizers import decoders, pre_tokenizers
from vllm_fakes import letters

from vllm_rag_accel import prompt_texts
from vllm_rag_accel.prompt_texts import EDGE, LEAST_TOKENS, FoundText, TextFinder

IDS = st.lists(st.integers(0, 3), min_size=LEAST_TOKENS, max_size=24)


def ids_of(text: str) -> list[int]:
    """Return a token for each letter, but one for ``(a``, ``n)`` and ``i)``."""
    for token, pair in PAIRS.items():
        text = text.replace(pair, token)
    return [ord(one) for one in text]


PAIRS = {"A": "(a", "N": "n)", "I": "i)"}


def merging() -> TextFinder:
    """Return a tokenizer of letters, some of which merge with the bracket beside them."""
    return TextFinder(ids_of, lambda ids: "".join(PAIRS.get(chr(at), chr(at)) for at in ids))


def _finder(texts: dict[str, list[int]]) -> TextFinder:
    return TextFinder(lambda text: texts[text], lambda ids: "".join(map(str, ids)))


@given(IDS, IDS, st.lists(st.integers(0, 3), max_size=5), st.lists(st.integers(0, 3), min_size=1))
def test_what_is_found_is_there(
    one: list[int], other: list[int], before: list[int], between: list[int]
) -> None:
    prompt = [*before, *one, *between, *other]
    at = 0
    found = _finder({"one": one, "other": other}).find(prompt, ["one", "other"])
    for text in found:
        length = text.stop - text.start
        assert at <= text.start < text.stop <= len(prompt)
        assert list(text.ids[text.offset : text.offset + length]) == prompt[text.start : text.stop]
        assert length >= len(text.ids) - 2 * EDGE
        at = text.stop
    assert found[0].text == "one"


def test_texts_are_found_whole_and_in_order() -> None:
    finder = letters()
    prompt = "Context: the first document; the second document. Question?"
    found = finder.find([ord(one) for one in prompt], ["the first document", "the second document"])
    assert [prompt[one.start : one.stop] for one in found] == [
        "the first document",
        "the second document",
    ]
    assert [one.offset for one in found] == [0, 0]


def test_a_text_named_twice_is_found_twice() -> None:
    prompt = [ord(one) for one in "the same text, the same text?"]
    found = letters().find(prompt, ["the same text", "the same text"])
    assert [one.start for one in found] == [0, 15]


def test_tokens_that_merged_at_the_edges_are_left_out() -> None:
    (found,) = merging().find(ids_of("x (abcdefghijklmn)"), ["abcdefghijklmn"])
    assert (found.offset, found.start, found.stop) == (1, 3, 15)


@pytest.mark.parametrize("prompt", ["xbcdefghijklmn)", "(abcdefghijklmx", "bcdefghijklm"])
def test_the_middle_of_a_text_is_not_the_text(prompt: str) -> None:
    """What stands around it in the prompt is something else."""
    assert merging().find(ids_of(prompt), ["abcdefghijklmn"]) == []


def test_the_least_number_of_tokens_of_a_short_text_stands_in_the_prompt() -> None:
    (found,) = merging().find(ids_of("(abcdefghi"), ["abcdefghi"])
    assert (found.offset, found.start, found.stop) == (1, 1, 9)
    assert merging().find(ids_of("(abcdefghi)"), ["abcdefghi"]) == []


def test_a_text_is_found_at_its_own_place_behind_a_chance_place_of_its_middle() -> None:
    prompt = "xbcdefghijklmx, (abcdefghijklmn)"
    (found,) = merging().find(ids_of(prompt), ["abcdefghijklmn"])
    assert found.start == prompt.index("(") + 1


def test_a_prompt_of_chance_places_alone_is_not_read_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prompt_texts, "MOST_OTHERS", 3)
    for count, is_found in ((3, True), (4, False)):
        prompt = ids_of("xbcdefghijklmx" * count + "(abcdefghijklmn)")
        assert bool(merging().find(prompt, ["abcdefghijklmn"])) is is_found


def metaspace() -> Any:
    """Return a tokenizer whose words begin with their space, and which adds one to a text."""
    alphabet = sorted({*WORDS, "\n"})
    return make_tokenizer(pre_tokenizers.Metaspace(), decoders.Metaspace(), alphabet)


WORDS = "the a river lake of Bern, Thun. texts flows 4711 über (admin) secret: 日本 reused and"


@pytest.mark.parametrize("make", [make_tokenizer, metaspace])
def test_no_text_is_found_where_it_does_not_stand(make: Any) -> None:
    """Texts of few words, some not of the prompt, whose middles stand everywhere."""
    tokenizer = make()
    finder = TextFinder(
        lambda text: tokenizer.encode(text, add_special_tokens=False), tokenizer.decode
    )
    rng = random.Random(4)
    words = WORDS.split()
    seen = long = 0
    for _ in range(1000):
        texts = [" ".join(rng.choices(words, k=rng.randrange(4, 16))) for _ in range(3)]
        prompt = "".join(rng.choice((" ", "Source: ", "\n", "(", "x")) + text for text in texts)
        inner = prompt.split()[3:-3]
        named = [*texts, f"{words[0]} {' '.join(inner)} {words[1]}"]
        made = tokenizer(prompt, add_special_tokens=False, return_offsets_mapping=True)
        found = finder.find(made.input_ids, named)
        assert all(stands(one, prompt, made.offset_mapping, tokenizer) for one in found)
        assert {one.text for one in found} <= {text for text in named if text in prompt}
        seen += len(found)
        long += sum(len(finder.ids(text)) >= LEAST_TOKENS + 2 * EDGE for text in texts)
    assert seen >= long > 0


def stands(one: FoundText, prompt: str, offsets: list[tuple[int, int]], tokenizer: Any) -> bool:
    """Tell by the tokenizer's own offsets whether a text stands where it was found."""
    own = tokenizer(one.text, add_special_tokens=False, return_offsets_mapping=True)
    count = one.stop - one.start
    start = offsets[one.stop - 1][1] - own.offset_mapping[one.offset + count - 1][1]
    return count >= LEAST_TOKENS and prompt.startswith(one.text, start)


def test_a_text_that_is_changed_in_the_middle_is_not_found() -> None:
    text = list(range(10, 30))
    prompt = [1, *text[:10], 99, *text[11:], 3]
    assert _finder({"text": text}).find(prompt, ["text"]) == []


def test_a_text_behind_its_turn_is_left_out() -> None:
    prompt = [ord(one) for one in "the second document; the first document"]
    found = letters().find(prompt, ["the first document", "the second document"])
    assert [one.text for one in found] == ["the first document"]


def test_short_texts_are_left_out() -> None:
    assert letters().find([ord(one) for one in "a short one"], ["short"]) == []


def test_the_head_ends_where_the_users_message_begins() -> None:
    prompt = "<system>Be brief.<user>Question: Who? Context: the document"
    ids = [ord(one) for one in prompt]
    stop = prompt.index("the document")
    finder = letters()
    assert finder.head(ids, stop, "Question: Who? Context: ") == prompt.index("Question")
    assert finder.head(ids, stop, None) == stop
    assert finder.head(ids, stop, "") == stop
    assert finder.head(ids, stop, "no such text") == stop
