"""Documents are found where they stand in a prompt, as they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_accel.kv.locate import locate
from rag_accel.kv.segments import TextSpan


def shown(text: str, *documents: str) -> list[str]:
    spans = locate(text, [(str(at), one) for at, one in enumerate(documents)])
    return [f"{span.document}:{text[span.start : span.stop]}@{span.start}" for span in spans]


@pytest.mark.parametrize(
    ("text", "documents", "found"),
    [
        ("a pump, a lane", ("a pump",), ["0:a pump@0"]),
        ("a lane, a pump", ("a pump", "a lane"), ["0:a pump@8", "1:a lane@0"]),
        ("pump pump", ("pump",), ["0:pump@0", "0:pump@5"]),
        ("[1] pump\n", ("  pump \n",), ["0:pump@4"]),
        ("[1]  pump \n.", ("  pump \n",), ["0:  pump \n@3"]),
        ("a pump of water", ("pump", "a pump of"), ["0:pump@2", "1:a pump of@0"]),
        ("nothing", ("pump",), []),
        ("nothing", ("", " \n"), []),
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
