"""Documents are found where they stand in a prompt, whole or in parts."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_accel.kv.locate import LEAST_CHARACTERS, MOST_PARTS, MOST_PLACES, TextAnchors, locate
from rag_accel.kv.segments import TextSpan

LINES = (
    "The filter of the pump is cleaned every month.",
    "The lamp beside it is red while it runs. It is green when it rests.",
    "Its guide is kept in the drawer of the desk.",
)


def shown(text: str, *documents: str) -> list[str]:
    spans = locate(text, [(str(at), one) for at, one in enumerate(documents)])
    return [f"{span.document}:{text[span.start : span.stop]}@{span.start}" for span in spans]


def texts(text: str, *documents: str, parts: bool = True, never: tuple[str, ...] = ()) -> list[str]:
    named = [(str(at), one) for at, one in enumerate(documents)]
    found = locate(text, named, 12, parts=parts, never=never)
    return [text[span.start : span.stop] for span in found]


@pytest.mark.parametrize(
    ("text", "documents", "found"),
    [
        ("a pump, a lane", ("a pump",), ["0:a pump@0"]),
        ("a lane, a pump", ("a pump", "a lane"), ["1:a lane@0", "0:a pump@8"]),
        ("pump pump", ("pump",), ["0:pump@0", "0:pump@5"]),
        ("[1] pump\n", ("  pump \n",), ["0:pump@4"]),
        ("[1]  pump \n.", ("  pump \n",), ["0:  pump \n@3"]),
        ("a pump of water", ("pump", "a pump of"), ["1:a pump of@0"]),  # the longer one
        ("a pump of water", ("a pump of", "of water"), ["0:a pump of@0"]),  # overlapping
        ("nothing", ("pump",), []),
        ("nothing", ("", " \n"), []),
        ("", ("pump",), []),
    ],
)
def test_places(text: str, documents: tuple[str, ...], found: list[str]) -> None:
    assert shown(text, *documents) == found


def test_short_texts_are_not_looked_for() -> None:
    assert locate("a pump", [("0", "pump")], least=5) == []


@given(st.lists(st.text("ab ", min_size=1, max_size=4), max_size=4), st.text("ab ", max_size=20))
def test_what_is_found_is_the_document(documents: list[str], text: str) -> None:
    for span in locate(text, [(one, one) for one in documents]):
        assert text[span.start : span.stop] in (span.document, span.document.strip())
        assert isinstance(span, TextSpan)


@given(
    st.text("ab\n", max_size=60),
    st.text("ab\n", min_size=LEAST_CHARACTERS, max_size=40),
    st.text("ab\n", max_size=60),
)
def test_an_index_finds_what_reading_finds(before: str, wanted: str, after: str) -> None:
    text = before + wanted + after
    read = [at for at in range(len(text)) if text.startswith(wanted, at)]
    candidates = TextAnchors(text).candidates(wanted)
    assert [at for at in candidates if text.startswith(wanted, at)] == read


def test_an_index_refuses_what_may_have_no_window() -> None:
    with pytest.raises(ValueError, match="22 characters"):
        TextAnchors("a text").candidates("a" * 22)


@pytest.mark.parametrize("between", ["\n", "\n\n", " \n\n  "])
@pytest.mark.parametrize("prefix", ["  ", "> ", "* "])
def test_lines_are_found_where_a_template_has_changed_what_is_between(
    prefix: str, between: str
) -> None:
    prompt = "\n".join(prefix + one for one in LINES)
    assert texts(prompt, between.join(LINES)) == list(LINES)


def test_sentences_are_found_of_a_text_that_was_cut() -> None:
    whole = " ".join(LINES)
    cut = f"Context: {whole[:100]}"
    assert texts(cut, whole) == [LINES[0], "The lamp beside it is red while it runs."]


def test_paragraphs_stay_whole() -> None:
    paragraphs = ["\n".join(LINES[:2]), LINES[2]]
    prompt = f"1. {paragraphs[0]}\n2. {paragraphs[1]}"
    assert texts(prompt, "\n\n".join(paragraphs)) == paragraphs


def test_one_part_alone_is_not_told_from_what_is_asked() -> None:
    assert texts(f"{LINES[0]} Is it?", "\n".join(LINES)) == []


def test_parts_are_looked_for_only_where_asked_for() -> None:
    assert texts("\n - ".join(LINES), "\n".join(LINES), parts=False) == []


def test_what_is_asked_is_not_found() -> None:
    prompt = f"{LINES[1]}\n\nQuestion: {LINES[0]}"
    assert texts(prompt, LINES[0], LINES[1], never=(LINES[0],)) == [LINES[1]]
    parts = ". ".join((LINES[0], LINES[2], LINES[1]))
    assert LINES[0] not in texts(f"{prompt} - {LINES[2]}", parts, never=(LINES[0],))


@pytest.mark.parametrize(
    ("text", "documents"),
    [
        ("a" * 100_000, ["a", ""] + ["a" * size for size in range(24, 524)]),
        ("a" * 100_000, ["a" * size + "b" + "a" * size for size in range(24, 524)]),
        ("the same line, again and again\n" * 10_000, ["the same line, again and again"] * 10_000),
        ("the same line, again and again\n" * 3_000, ["the same line, again and again\n" * 2_999]),
        ("a line, and. " * 8_000, ["a line, and. " * size + "b" for size in range(2, 500)]),
    ],
    ids=["nested", "nearly", "repeats", "long", "sentences"],
)
def test_hostile_documents_are_compared_at_a_bounded_number_of_places(
    text: str, documents: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[int] = []
    real = TextAnchors.candidates

    def counting(anchors: TextAnchors, wanted: str) -> list[int]:
        compared.append(len(real(anchors, wanted)))
        return real(anchors, wanted)

    monkeypatch.setattr(TextAnchors, "candidates", counting)
    found = locate(text, [("", one) for one in documents], 24, parts=True)
    assert sum(compared) <= 40_000
    assert len(compared) <= 2 * len(documents) + MOST_PARTS
    assert len(found) <= MOST_PLACES
    assert all(one.stop <= two.start for one, two in pairwise(found))
