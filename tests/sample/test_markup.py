"""Test how marked-up text becomes paragraphs."""

from __future__ import annotations

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_accel.sample.markup import is_prose, paragraphs, plain_text, prose_paragraphs


def _prose(text: str) -> list[str]:
    return prose_paragraphs(inspect.cleandoc(text))


def test_wrapped_lines_become_one_paragraph() -> None:
    assert paragraphs("One line\nand the next.\n\nAnother\n  one.") == [
        "One line and the next.",
        "Another one.",
    ]


def test_list_items_stand_alone_with_their_continuation() -> None:
    assert paragraphs("Choose:\n- red\n  wine\n* beer\n2. water") == [
        "Choose:",
        "- red wine",
        "- beer",
        "- water",
    ]


def test_a_described_parameter_becomes_an_item_in_every_docstring_style() -> None:
    google = "Args:\n    size: how large it may be.\n    name (str): what it is called."
    numpy = "Parameters\n----------\nsize : int\n    how large it may be."
    sphinx = ":param size: how large it may be.\n:returns: the size of it all."
    assert _prose(google) == ["- size: how large it may be.", "- name (str): what it is called."]
    assert _prose(numpy) == ["- size (int): how large it may be."]
    assert _prose(sphinx)[0] == "- size: how large it may be."


def test_a_word_with_a_colon_inside_a_wrapped_sentence_is_no_item() -> None:
    assert paragraphs("This holds for one\nexample: the last one.") == [
        "This holds for one example: the last one."
    ]


def test_an_underlined_heading_is_kept_but_for_its_ruler() -> None:
    assert paragraphs("Care\n====\nOil it.\n\n---\n\nUse it.") == ["Care", "Oil it.", "Use it."]


def test_hostile_markup_is_read_in_time() -> None:
    for letter in "[`<*|":
        assert plain_text(letter * 100_000)


def test_code_is_dropped_from_prose() -> None:
    text = """
        Join two strings together.

        >>> join("a", "b")
        'ab'

        It is called like this::

            join(first, second)
            join(third)

        The result is a new string.

        ```python
        join("never seen", "by anyone here")
        ```
        """
    assert _prose(text) == ["Join two strings together.", "The result is a new string."]


def test_tables_rulers_headings_and_badges_are_dropped_from_prose() -> None:
    text = """
        # The name of the project

        [![build of the project](https://a.example/b.svg)](https://a.example)

        Usage of the thing
        ==================

        | a table | with words | in it |
        +---------+------------+-------+

        It reads documents and answers questions.
        """
    assert _prose(text) == ["It reads documents and answers questions."]


def test_a_spoken_directive_is_kept_and_a_silent_one_is_not() -> None:
    text = """
        .. note:: This is slow for large files.

        .. image:: some/picture of a cat.png
            :alt: a cat that sleeps

        It ends here for good.
        """
    assert _prose(text) == ["- Note: This is slow for large files.", "It ends here for good."]


@pytest.mark.parametrize(
    ("marked", "plain"),
    [
        ("Call ``json.dumps`` or `loads`.", "Call json.dumps or loads."),
        (
            "See :class:`~json.JSONEncoder` and :ref:`the guide <guide>`.",
            "See json.JSONEncoder and the guide.",
        ),
        ("A [link](https://a.example/b_(c)) and `another <https://d>`_.", "A link and another."),
        ("Very **strong** and *slanted* text.", "Very strong and slanted text."),
        ("Pass *args and **kwargs on.", "Pass *args and **kwargs on."),
        ("A<br/>line <b>break</b>.", "Aline break."),
        ("2 * 3 * 4", "2 * 3 * 4"),
    ],
)
def test_inline_markup_is_removed(marked: str, plain: str) -> None:
    assert plain_text(marked) == plain


def test_prose_is_told_from_code() -> None:
    assert is_prose("Return the number of open files.")
    assert not is_prose("x = {a: b} | {c: d}; y = x[1]")
    assert not is_prose("Return it")


@given(st.text())
def test_unwrapping_keeps_every_letter_outside_fields(text: str) -> None:
    if ":" in text:  # field names such as ":param x:" are rewritten
        text = text.replace(":", "")
    joined = "".join(paragraphs(text))
    assert [one for one in joined if one.isalpha()] == [one for one in text if one.isalpha()]


@given(st.text(alphabet="aB .:\n-*`#<>|=(){}[]>~_"))
def test_any_text_can_be_read_as_prose(text: str) -> None:
    assert all("\n" not in paragraph for paragraph in prose_paragraphs(text))
