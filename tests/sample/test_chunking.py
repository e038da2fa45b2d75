"""Test how paragraphs are packed into chunks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rag_accel.sample.chunking import MAX_WORDS, Section, chunk_section, count_words


def _section(*paragraphs: str) -> Section:
    return Section("m.f", "m.f(a)", "m.f", "m.f", "m.py", paragraphs)


def _words(count: int, word: str = "word") -> str:
    return " ".join([word] * (count - 1)) + f" {word}."


def test_a_short_section_is_one_chunk_that_begins_with_its_heading() -> None:
    (chunk,) = chunk_section(_section("It works.", "It is fast.", "- a: a letter"))
    assert chunk.id == "m.f"
    assert chunk.text == "m.f(a): It works.\n\nIt is fast.\n- a: a letter"
    assert chunk.metadata == {"source": "m.py", "title": "m.f", "qualname": "m.f"}


def test_items_begin_below_the_heading() -> None:
    (chunk,) = chunk_section(_section("- a: a letter", "- b: another"))
    assert chunk.text == "m.f(a):\n- a: a letter\n- b: another"


def test_ids_of_later_chunks_are_numbered() -> None:
    chunks = chunk_section(_section(*[_words(100)] * 3))
    assert [chunk.id for chunk in chunks] == ["m.f", "m.f#2", "m.f#3"]
    assert all(chunk.text.startswith("m.f(a): ") for chunk in chunks)


def test_a_long_paragraph_is_cut_between_sentences() -> None:
    text = " ".join(f"The {_words(30)}" for _ in range(10))
    chunks = chunk_section(_section(text))
    assert len(chunks) > 1
    assert all(chunk.text.endswith(".") for chunk in chunks)


def test_a_sentence_longer_than_a_chunk_is_cut_between_words() -> None:
    chunks = chunk_section(_section(_words(1000)))
    assert sum(count_words(chunk.text) for chunk in chunks) == 1000 + len(chunks)


def test_text_without_spaces_is_cut_too() -> None:
    chunks = chunk_section(_section("\u6c34" * 20_000))
    bodies = [chunk.text.removeprefix("m.f(a): ") for chunk in chunks]
    assert "".join(bodies).replace(" ", "") == "\u6c34" * 20_000
    assert max(map(len, bodies)) < 4000


def test_every_chunk_repeats_the_beginning_of_a_long_name_only() -> None:
    long = "name " * 1000
    section = Section("m.f", long, long, long, "m.py", (_words(100),) * 3)
    for chunk in chunk_section(section):
        assert len(chunk.text) < 1500
        assert len(chunk.metadata["title"]) == len(chunk.metadata["qualname"]) == 500


def test_a_short_rest_joins_the_chunk_before_it() -> None:
    assert len(chunk_section(_section(_words(130), _words(20)))) == 1


def test_nothing_to_say_is_no_chunk() -> None:
    assert chunk_section(_section()) == []
    assert chunk_section(_section("", "  ")) == []


@given(st.lists(st.integers(1, 400), min_size=1, max_size=12))
def test_no_word_is_lost_and_no_chunk_is_too_long(sizes: list[int]) -> None:
    texts = [_words(size, f"w{number}") for number, size in enumerate(sizes)]
    chunks = chunk_section(_section(*texts))
    bodies = [chunk.text.removeprefix("m.f(a): ") for chunk in chunks]
    assert " ".join(bodies).split() == " ".join(texts).split()
    assert all(count_words(body) <= MAX_WORDS + 20 for body in bodies)
