"""A list has the same items whole and in pieces, whatever form it has and what stands around it."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rag_accel.errors import EngineOutputError
from rag_accel.graph.item_lists import ItemReader, ListForm, read_items

FORMS: tuple[ListForm, ...] = ("auto", "lines", "json")
forms = st.sampled_from(FORMS)
#: letters that mean something to some form, and some that do not
TEXTS = st.text('ab {}[]",:\\u1de8-*`1.)\n\r\t\x1c\u2028é😀', max_size=60)
#: any text with a letter; half a pair of surrogates is none
ITEMS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)


def items_of(pieces: list[str], form: ListForm) -> tuple[list[str], bool]:
    """Return the items in the order in which they are given out, and whether there was a list."""
    reader = ItemReader(form)
    found = [item for piece in pieces for item in reader.feed(piece)]
    try:
        found += reader.finish()
    except EngineOutputError:
        return found, False
    assert reader.items == tuple(found)
    return found, True


@given(TEXTS, forms, st.lists(st.integers(0, 60), max_size=8))
@example('Sure:\n["a\u2028b"]', "auto", [5, 6, 9])
@example('{"x"}:\na', "auto", [3])
@example("Sure:\r\n- a\r\n- b", "lines", [6, 11])
@example('["\\ud83d\\ude00"]', "json", [4, 7, 9, 12])
@example('[\n"a"', "auto", [1])
def test_pieces_give_the_items_of_the_whole(text: str, form: ListForm, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[low:high] for low, high in pairwise(edges)]
    assert items_of(pieces, form) == items_of([text], form)
    assert items_of(list(text), form) == items_of([text], form)


@given(TEXTS, TEXTS, forms)
def test_what_follows_takes_no_item_back(text: str, more: str, form: ListForm) -> None:
    reader = ItemReader(form)
    early = reader.feed(text)
    reader.feed(more)
    assert reader.items[: len(early)] == early


@given(TEXTS, forms, st.integers(1, 3))
def test_a_limit_leaves_the_first_items(text: str, form: ListForm, limit: int) -> None:
    reader = ItemReader(form, limit)
    reader.feed(text)
    unlimited = ItemReader(form)
    unlimited.feed(text)
    assert reader.items == unlimited.items[:limit]


@given(st.lists(ITEMS, min_size=1), st.booleans(), st.sampled_from([None, 2]))
def test_json_of_texts_is_read_as_it_was_written(
    items: list[str], escaped: bool, indent: int | None
) -> None:
    clean = tuple(dict.fromkeys(item.strip() for item in items))
    text = json.dumps(items, ensure_ascii=escaped, indent=indent)
    assert read_items(text) == read_items(text, "json") == clean
    assert read_items(f'Sure, "here":\n```json\n{{"queries": {text}}}\n```\nBye [x].') == clean


MARK = re.compile(r"^\s*(?:[-*•]|\(?\d{1,3}[.):])\s+")


@given(st.text("ab -*1.)\n\r(•\t", max_size=60))
def test_lines_are_what_a_whole_text_parser_finds(text: str) -> None:
    lines = (MARK.sub("", line).strip() for line in text.splitlines())
    expected = tuple(dict.fromkeys(line for line in lines if line))
    assert read_items(text, "lines") == read_items(text) == expected


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ('["a", "b",]', ["a", "b"]),
        ('["a", "b', ["a"]),
        ('["a"\n"b"', ["a", "b"]),
        ("[]", []),
        ('{"queries": ["a", "b"], "notes": ["c"]}', ["a", "b"]),
        ('{"why": "see [\\"x\\"]", "queries": ["a"]}', ["a"]),
        ('[{"query": "a", "rank": 1}, {"query": "b"}]', ["a", "b"]),
        ('{"query": "a"}\n{"query": "b"}\n{"query": "c', ["a", "b"]),
        ('["\\u00e9\\q\\ud800"]', ["éq\ufffd"]),
        ('```json\n[\n  "a",\n  "b"\n]\n```', ["a", "b"]),
        ("Here are three:\n1. a\n2) b\n(3) c", ["a", "b", "c"]),
        ("```\n- a\n* b\n```", ["a", "b"]),
        ("a\nnote:\nb\na", ["a", "note:", "b"]),
        ("- note:\nb", ["note:", "b"]),
        ("[1] a\n[2] b", ["[1] a", "[2] b"]),
        ('{"queries": "a', []),
        ("{}", []),
        ("", []),
    ],
)
def test_the_form_is_told_by_how_a_text_begins(text: str, items: list[str]) -> None:
    assert list(read_items(text)) == items


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ('As [1] says {so}: ["a", "b"] and "c".', ["a", "b"]),
        ('"a"\n"b",\n"c" is no item\nnor "d"', ["a", "b"]),
        ('He said "no.\n["a"]', ["a"]),
        ('{"a": {"query": "b"}} {"query": "c"}', ["b", "c"]),
        ('{"queries": []}', []),
        ('[["a", "b"], ["c"]]', ["a", "b"]),
        ('["a", ["b"], "c"] ["d"]', ["a", "b", "c"]),
        ('["a", {"b": "c"]', ["a"]),
    ],
)
def test_json_is_found_wherever_it_stands(text: str, items: list[str]) -> None:
    assert list(read_items(text, "json")) == items


def test_an_item_of_a_line_comes_with_the_end_of_the_line() -> None:
    reader = ItemReader()
    assert reader.feed("1. first") == ()
    assert reader.feed(" item\n2.") == ("first item",)
    assert reader.feed(" second") == ()
    assert reader.finish() == ("second",)


def test_an_item_of_json_comes_with_its_quote() -> None:
    reader = ItemReader()
    assert reader.feed('["first \\"item') == ()
    assert reader.feed('\\""') == ('first "item"',)
    assert reader.feed(', "sec') == ()
    assert reader.finish() == ()


def test_text_without_the_list_it_had_to_be_is_an_error_that_shows_no_more_than_its_head() -> None:
    text = "I am sorry, " + "but " * 100
    with pytest.raises(EngineOutputError, match="holds no list") as caught:
        read_items(text, "json")
    assert "I am sorry" in str(caught.value)
    assert len(str(caught.value)) < 400
