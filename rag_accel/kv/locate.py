"""Texts of documents found in the text of a prompt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rag_accel.kv.segments import TextSpan


def locate(text: str, documents: Iterable[tuple[str, str]], least: int = 1) -> list[TextSpan]:
    """Return every place where a document's text stands in a prompt's text, as it is.

    A text that is not found is looked for once more without the white space around it. Places may
    overlap: a document may be part of another.

    Args:
        text: of the prompt.
        documents: the id and the text of each.
        least: shorter texts, in characters, are not looked for.
    """
    found: list[TextSpan] = []
    for document, wanted in documents:
        stripped = wanted.strip()
        for form in dict.fromkeys((wanted, stripped)):
            if len(stripped) < max(1, least):
                break
            places = list(_places(text, form))
            if places:
                found += (TextSpan(at, at + len(form), document) for at in places)
                break
    return found


def _places(text: str, wanted: str) -> Iterator[int]:
    at = text.find(wanted)
    while at >= 0:
        yield at
        at = text.find(wanted, at + len(wanted))
