"""All paths of a prompt are found by their lines, however many and however short they are."""

from __future__ import annotations

from collections.abc import Sequence

from rag_accel.engine_api import GenerationInput, Message
from rag_accel.kv.dependency.lines import find_path_lines, locate_paths
from rag_accel.kv.locate import MOST_PLACES
from rag_accel.kv.prompt_chunks import locate_chunks
from rag_accel.kv.segments import TextSpan

PATHS = tuple(f"root {at % 10} -> has -> middle {at % 60} -> holds -> {at}" for at in range(300))


def _found(text: str, *documents: str, never: Sequence[str] = ()) -> list[str]:
    named = [(str(at), document) for at, document in enumerate(documents)]
    spans = locate_paths(text, named, never)
    return [f"{span.document}: {text[span.start : span.stop]}" for span in spans]


def test_more_paths_are_found_than_other_texts() -> None:
    assert len(PATHS) > MOST_PLACES
    text = "Facts:\n" + "\n".join(PATHS) + "\n\nWhich?"
    prompt = GenerationInput((Message("system", "Be brief."), Message("user", text)), max_tokens=1)
    spans = locate_chunks(prompt, [(path, path) for path in PATHS], paths_first=True).chunk_spans
    assert {span.message for span in spans} == {1}
    assert [text[span.start : span.stop] for span in spans] == list(PATHS)
    assert [span.document for span in spans] == list(PATHS)
    lines = find_path_lines(text, [TextSpan(span.start, span.stop, "") for span in spans])
    assert lines is not None
    assert ["".join(path) for path in lines.paths] == list(PATHS)


def test_paths_are_found_behind_labels_and_without_white_space_around() -> None:
    text = "[1] a -> r -> b\n  - a -> r -> c  \n2. a -> s -> d\na -> s -> e"
    documents = ("a -> r -> b", " a -> r -> c\n", "a -> s -> d", "a -> s -> e")
    assert _found(text, *documents) == [
        f"{at}: {document.strip()}" for at, document in enumerate(documents)
    ]


def test_a_document_of_many_lines_is_found_line_by_line() -> None:
    document = "Found:\na -> r -> b\na -> r -> c"
    assert _found("1) a -> r -> c\n2) a -> r -> b", document) == [
        "0: a -> r -> c",
        "0: a -> r -> b",
    ]


def test_a_line_that_no_document_has_is_text() -> None:
    assert _found("a -> r -> b\na -> r -> c", "a -> r -> b") == ["0: a -> r -> b"]
    assert _found("see a -> r -> b", "a -> r -> b") == []
    assert _found("a -> r -> b or", "a -> r -> b") == []
    assert _found("", "a -> r -> b") == []
    assert _found("a -> r -> b") == []


def test_a_document_that_is_no_path_is_not_looked_for() -> None:
    assert _found("Fuji is high.\na -> r", "Fuji is high.", "a -> r", "") == []


def test_a_question_is_not_taken_for_a_document() -> None:
    assert _found("a -> r -> b", "a -> r -> b", never=["a -> r -> b"]) == []


def test_of_equal_documents_the_first_is_named() -> None:
    assert _found("a -> r -> b\na -> r -> b", "a -> r -> b", "a -> r -> b") == [
        "0: a -> r -> b",
        "0: a -> r -> b",
    ]
