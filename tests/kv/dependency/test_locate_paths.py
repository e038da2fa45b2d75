"""Paths of retrieved texts are found on the lines of a prompt, however many and short they are."""

from __future__ import annotations

import pytest

from rag_accel.kv.dependency.lines import find_path_lines, locate_paths

A, B = "a -> r -> b", "a -> r -> b -> s -> c"


def located(text: str, *documents: str, never: tuple[str, ...] = ()) -> list[str]:
    named = [(str(at), document) for at, document in enumerate(documents)]
    return [text[span.start : span.stop] for span in locate_paths(text, named, never)]


@pytest.mark.parametrize("label", ["", "[1] ", "2. ", "- ", "* ", "  ", "\t- "])
def test_a_path_is_found_behind_a_label(label: str) -> None:
    assert located(f"Facts:\n{label}{A}  \r\n{label}{B}\nWhy?", A, B) == [A, B]


def test_paths_are_found_in_the_lines_of_a_text() -> None:
    assert located(f"{A}\nAnd so on.\n{B}", f"Some facts:\n\n{B}\n{A}\n\nAnd text.") == [A, B]


def test_a_path_that_begins_with_a_number_keeps_it() -> None:
    path = "1. a -> r -> b"
    assert located(f"{path}\n2. {path}", path) == [path, path]


@pytest.mark.parametrize("line", [f"{A}, is it?", f"It is {A}", f"{A} -> s", "a ->  r -> b", ""])
def test_no_other_line_is_one(line: str) -> None:
    assert located(f"Facts:\n{line}\nWhy?", A) == []


def test_what_was_not_retrieved_is_not_found() -> None:
    assert located(f"{A}\n{B}") == []
    assert located(f"{A}\n{B}", B) == [B]
    assert located(A, "Text without a path.", "") == []


def test_the_question_is_not_found() -> None:
    assert located(f"{A}\n{B}", A, B, never=(A,)) == [B]
    assert located(f"{A}\n{B}", f"{A}\n{B}", never=(f"{A}\n{B}",)) == []


def test_a_span_names_the_first_document_that_has_the_line() -> None:
    spans = list(locate_paths(f"[1] {A}", [("x", "text"), ("y", f" {A}\n"), ("z", A)]))
    assert [span.document for span in spans] == ["y"]


def test_hundreds_of_paths_that_begin_alike_are_one_run() -> None:
    paths = [f"The same long name -> has the same relation to -> number {at}" for at in range(600)]
    text = "\n".join(paths)
    found = find_path_lines(text, locate_paths(text, [(path, path) for path in paths]))
    assert found is not None
    assert len(found.paths) == len(paths)
