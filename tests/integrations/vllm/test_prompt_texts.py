"""Texts found in a prompt's tokens, also where tokens at their edges merged with others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from vllm_fakes import letters

from vllm_rag_accel.prompt_texts import EDGE, LEAST_TOKENS, TextFinder

IDS = st.lists(st.integers(0, 3), min_size=LEAST_TOKENS, max_size=24)


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
    text = list(range(10, 30))
    prompt = [1, 2, 99, *text[1:-1], 98, 3]
    (found,) = _finder({"text": text}).find(prompt, ["text"])
    assert (found.offset, found.start, found.stop) == (1, 3, 21)


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
