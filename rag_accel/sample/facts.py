"""Read the sentences of a document together with what each of them is about."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from rag_accel.engine_api import Document
from rag_accel.engines.llm.extractive.sentences import split_sentences

_TITLE_WORDS = 6
# The rules for questions look at a sentence from each of its verbs, and each question repeats the
# name of what it is about: both are bounded, far beyond what anybody would ask about.
_MAX_SENTENCE_LETTERS = 1000
_MAX_NAME_LETTERS = 200
_TITLE_END = re.compile(r"(?<=\w), |(?<=\w): |\s[\u2014\u2013|\u00b7-]+\s")
_NAMED = re.compile(r"([A-Za-z_][\w.]*\.\w+)(?:\([^)]*\))?:\s+(.+)")


@dataclass(frozen=True, slots=True)
class Fact:
    """Hold one sentence and how to speak of where it stands.

    Args:
        subject: what the sentence is about, such as ``json.dumps`` or a document's title.
        place: where to look, such as ``json`` or a document's title.
        body: the sentence without the name in front of it.
        is_code: whether the subject is a function, method or class.
        is_summary: whether it is the first sentence on a named function, method or class.
        parameter_of: the function whose parameter the sentence describes, if any.
    """

    subject: str
    place: str
    body: str
    is_code: bool
    is_summary: bool = False
    parameter_of: str | None = None


def read_facts(document: Document) -> Iterator[Fact]:
    """Yield a document's sentences of up to 1000 letters with the name that each is about."""
    qualname = str(document.metadata.get("qualname", document.id))
    title = str(document.metadata.get("title", document.id))
    is_code = str(document.metadata.get("source", "")).endswith(".py") and title == qualname
    place = _module(document) if is_code else short_title(title)
    subject = qualname if is_code else place
    is_function = is_code and document.text.startswith(f"{qualname}(")
    text = document.text if is_code else document.text.removeprefix(f"{title}: ")
    for sentence in split_sentences(text):
        if len(sentence) > _MAX_SENTENCE_LETTERS:
            continue
        named = _NAMED.fullmatch(sentence)
        is_summary = named is not None and is_code
        if named and is_summary:
            subject = named[1]
        yield Fact(
            subject=_spoken(subject) if is_code else subject,
            place=place,
            body=named[2] if named and is_summary else sentence,
            is_code=is_code,
            is_summary=is_summary,
            parameter_of=_spoken(qualname) if is_function else None,
        )


def short_title(title: str) -> str:
    """Return a title without its section and site: at most six words one would say aloud."""
    head = _TITLE_END.split(title.strip(), maxsplit=1)[0]
    return (" ".join(head.split()[:_TITLE_WORDS]) or title)[:_MAX_NAME_LETTERS]


def _module(document: Document) -> str:
    """Return what a developer would call the place: ``email.utils``, or a package's own name."""
    names = str(document.metadata.get("qualname", document.id)).split(".")
    parts = PurePosixPath(str(document.metadata.get("source", ""))).with_suffix("").parts
    if parts[:1] != ("python",):
        return names[0][:_MAX_NAME_LETTERS]
    return ".".join(name for name in names[:2] if name in parts)[:_MAX_NAME_LETTERS]


def _spoken(qualname: str) -> str:
    """Shorten a long qualified name to what one says: ``Class.method`` or ``function``."""
    names = qualname.split(".")
    if len(names) > 3:
        qualname = ".".join(names[-2:]) if names[-2][:1].isupper() else names[-1]
    return qualname[:_MAX_NAME_LETTERS]
