"""Whatever reads text from outside takes time in proportion to it, however the text is made.

Measured is processor time of this thread, the least of several runs, so that what else runs on the
machine does not count. A text four times as long may take six times as long; a reader that looks at
every pair of letters takes sixteen times as long.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rag_accel.engine_api import Document
from rag_accel.errors import RagAccelError
from rag_accel.graph import RAGraph
from rag_accel.graph.item_lists import ItemReader, ListForm
from rag_accel.graph.text import format as write
from rag_accel.sample import make_questions
from rag_accel.sample.markup import prose_paragraphs
from rag_accel.sample.source_files import BAD_SOURCE, read_sections
from rag_accel.telemetry.reading import read_json_lines
from rag_accel_demo import load_folder, load_questions

Read = Callable[[str], object]
Make = Callable[[int], str]
Reader = Callable[[Path], Read]

_MOST_GROWTH = 6.0
_DOUBTFUL_GROWTH = 8.0
#: what the shorter text takes at least: in a sample of the patterns, and in all of them
_SHORT_S, _LONG_S = 0.004, 0.05
_MOST_LETTERS = 500_000
_TRIES = 7


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    """Keep the garbage collector out: it looks at all that is alive, whatever was read."""
    gc.disable()
    yield
    gc.enable()


def growth(read: Read, make: Make, least_s: float = _SHORT_S) -> float:
    """Return how many times longer four times the text takes, 0 if any text takes hardly any time.

    What every text takes, even the shortest, is left out. What grows a little faster up to some
    bound, such as a search that stops after so many letters, counts by how it grows from there.
    """
    # The first of all imports a parser.
    shortest_s = min(_seconds(read, make(1)) for _ in range(4))
    size = 16
    while _seconds(read, make(size)) - shortest_s < least_s:
        if len(make(size)) > _MOST_LETTERS:
            return 0.0
        size *= 2
    first = _growth(read, make, size, shortest_s)
    if not _MOST_GROWTH < first <= _DOUBTFUL_GROWTH:
        return first
    return min(first, _growth(read, make, 4 * size, shortest_s))


def _growth(read: Read, make: Make, size: int, shortest_s: float) -> float:
    small, large = make(size), make(4 * size)
    small_s = large_s = float("inf")
    for _ in range(_TRIES):
        small_s = min(small_s, _seconds(read, small) - shortest_s)
        large_s = min(large_s, _seconds(read, large) - shortest_s)
        if large_s <= _MOST_GROWTH * small_s:
            break
    return large_s / max(small_s, 1e-9)


def _seconds(read: Read, text: str) -> float:
    start_s = time.thread_time()
    with contextlib.suppress(RagAccelError):  # a refusal has to be fast as well
        read(text)
    return time.thread_time() - start_s


def _items(form: ListForm, *, by_letter: bool) -> Reader:
    def read(text: str) -> None:
        reader = ItemReader(form)
        for piece in text if by_letter else (text,):
            reader.feed(piece)
        reader.finish()

    return lambda folder: read


def _file(name: str) -> Reader:
    """Read a folder with one document; no reader may end in Python's own bounds."""

    def reader(folder: Path) -> Read:
        def read(text: str) -> None:
            (folder / name).write_text(text)
            for skipped in load_folder(folder).skipped:
                assert not skipped.reason.startswith(("RecursionError", "MemoryError"))

        return read

    return reader


def _source(folder: Path) -> Read:
    def read(code: str) -> None:
        with contextlib.suppress(*BAD_SOURCE):
            read_sections(code.encode(), "m", "m.py")

    return read


def _docstring(folder: Path) -> Read:
    escaped = str.maketrans({"\\": "\\\\", '"': '\\"'})
    return lambda text: _source(folder)(f'"""{text.translate(escaped)}"""')


def _question_file(folder: Path) -> Read:
    def read(text: str) -> None:
        (folder / "questions.json").write_text(text)
        load_questions(folder / "questions.json")

    return read


def _trace(folder: Path) -> Read:
    def read(text: str) -> None:
        (folder / "trace").write_text(f"{text}\n")
        read_json_lines(folder / "trace")

    return read


def _format(folder: Path) -> Read:
    """Write a graph of as many stages as the text has letters, all with functions of one name."""

    def read(text: str) -> None:
        graph = RAGraph()
        for number, letter in enumerate(text):

            def named(value: object, letter: str = letter) -> object:
                return value

            graph.add_function(str(number), named)
        write(graph)

    return read


READERS: dict[str, Reader] = {
    "items": _items("auto", by_letter=False),
    "items by letter": _items("auto", by_letter=True),
    "json items by letter": _items("json", by_letter=True),
    "line items by letter": _items("lines", by_letter=True),
    "text": _file("a.txt"),
    "markdown": _file("a.md"),
    "prose": lambda folder: prose_paragraphs,
    "docstring": _docstring,
    "source": _source,
    "sentences": lambda folder: lambda text: make_questions([Document("a", text)], 5),
    "questions": _question_file,
    "graph text": _format,
    "trace": _trace,
}

#: texts made to be read slowly: what reads them and what they are, by length
PATTERNS: dict[str, tuple[str, Make]] = {
    "arrays in an array": ("items", lambda n: '["a",' + "[" * n),
    "objects in an array": ("items", lambda n: '["a",' + "{" * n),
    "arrays in objects": ("json items by letter", lambda n: '[{"a":' * n),
    "a bracket and blanks": ("items by letter", lambda n: "[" + " " * n),
    "introductions": ("items", lambda n: "a:\n" * n),
    "introductions by letter": ("items by letter", lambda n: "a:\n" * n),
    "a long line by letter": ("line items by letter", lambda n: "a" * n),
    "many lines by letter": ("items by letter", lambda n: "".join(f"{i}\n" for i in range(n))),
    "many texts by letter": (
        "items by letter",
        lambda n: "[" + "".join(f'"{i}",' for i in range(n)),
    ),
    "blank lines by letter": ("line items by letter", lambda n: "\n" * n),
    "an open text": ("json items by letter", lambda n: '["' + "\\" * n),
    "blanks in a heading": ("markdown", lambda n: "# x" + " " * n + "x"),
    "marks in a heading": ("markdown", lambda n: "# " + "#" * n + "x"),
    "front matter of empty lines": ("markdown", lambda n: "---" + "\n" * n),
    "front matter that does not end": ("markdown", lambda n: "---\n" + "a: b\n" * n),
    "badges": ("markdown", lambda n: "[![](" * n),
    "images in links": ("markdown", lambda n: "![a]([" * n),
    "brackets": ("markdown", lambda n: "[" * n + "]" * n),
    "links": ("markdown", lambda n: "[a](" * n),
    "emphasis": ("markdown", lambda n: "*a **b " * n),
    "underscores": ("markdown", lambda n: "*a_ " * n),
    "quotes in quotes": ("markdown", lambda n: ">" * n + "x"),
    "quotes and lazy lines": ("markdown", lambda n: ">" * n + "\na" * n),
    "lists in lists": ("markdown", lambda n: "- " * n + "x"),
    "lists in quotes": ("markdown", lambda n: "> - " * n),
    "loose items": ("markdown", lambda n: "* a\n\n" * n),
    "code quotes of all sizes": (
        "markdown",
        lambda n: "".join("e" + "`" * i for i in range(int(n**0.5) * 2)),
    ),
    "definitions": (
        "markdown",
        lambda n: "".join(f"[{i}]: a\n" for i in range(n)) + "[1] " * n,
    ),
    "definitions that do not end": ("markdown", lambda n: "[a\n" * n),
    "a definition used often": ("markdown", lambda n: f"[x]: {'a' * n}\n\n" + "[x]" * n),
    "cells": ("markdown", lambda n: "|" * n + "\n" + "|-" * n + "\n" + "|a\n" * n),
    "tags in Markdown": ("markdown", lambda n: "x <a b='" * n),
    "comments in Markdown": ("markdown", lambda n: "x <!--" * n),
    "fences": ("markdown", lambda n: "```\n~~~\n" * n),
    "a long heading": ("markdown", lambda n: f"# {'a' * n}\n\n" + "b. " * n),
    "blanks after a field": ("text", lambda n: ":returns " + " " * n + "x"),
    "words after a field": ("text", lambda n: ":param " + "a " * n),
    "brackets after names": ("text", lambda n: "a(" * n),
    "one long word": ("text", lambda n: "a" * n),
    "ends of sentences": ("text", lambda n: "! " * n),
    "tabs": ("text", lambda n: "\t" * n + "a"),
    "marks of links": ("prose", lambda n: "[![](" * n),
    "brackets in addresses": ("prose", lambda n: "[a](()" * n),
    "roles": ("prose", lambda n: ":a" * n + "`"),
    "blanks before an address": ("prose", lambda n: "`a" + " " * n + "<`"),
    "rulers": ("prose", lambda n: "a\n===\n" * n),
    "blank lines in front": ("docstring", lambda n: "\n" * n + "x"),
    "fields": ("docstring", lambda n: ":param " * n),
    "choices": ("source", lambda n: "if a: pass\n" + "elif a: pass\n" * n + '"""a"""'),
    "a long name with members": (
        "source",
        lambda n: f"class {'a' * n}:\n" + "".join(f" def f{i}(): '''a'''\n" for i in range(n)),
    ),
    "a long argument": ("source", lambda n: f"def f({'a' * n}): '''{'b. ' * n}'''"),
    "signs": ("source", lambda n: '"""a"""\n' + "-" * n + "1"),
    "verbs": ("sentences", lambda n: "is a " * n),
    "duties": ("sentences", lambda n: "The a must " * n + "."),
    "equal sentences": ("sentences", lambda n: "If the a is b, it is. " * n),
    "deep questions": ("questions", lambda n: "[" * n),
    "functions of one name": ("graph text", lambda n: "a" * n),
    "deep events": ("trace", lambda n: "[" * n),
    "events in events": ("trace", lambda n: '{"event":' * n),
}
#: the patterns that are tried in every run
SAMPLE = frozenset(
    (
        *("arrays in an array", "introductions by letter", "many texts by letter", "badges"),
        *("blanks in a heading", "front matter of empty lines"),
        *("blanks after a field", "marks of links", "a long heading"),
    )
)


@pytest.mark.parametrize("name", sorted(SAMPLE))
def test_a_text_made_to_be_read_slowly_takes_time_in_proportion_to_it(
    tmp_path: Path, name: str
) -> None:
    reader, make = PATTERNS[name]
    assert growth(READERS[reader](tmp_path), make) <= _MOST_GROWTH


@pytest.mark.slow
@pytest.mark.parametrize("name", PATTERNS)
def test_a_long_text_made_to_be_read_slowly_takes_time_in_proportion_to_it(
    tmp_path: Path, name: str
) -> None:
    reader, make = PATTERNS[name]
    assert growth(READERS[reader](tmp_path), make, _LONG_S) <= _MOST_GROWTH


#: what means something to a reader: every pair of these is tried
TOKENS: dict[str, tuple[str, ...]] = {
    "items by letter": (*'[]{}" ,:a', '"a"', "\n", "a:\n", "- ", "```\n"),
    "text": (*"a\n\t:()*= ", "- ", ":param ", ":returns ", "a: ", ". ", "! "),
    "markdown": (*"[<>`*_\\#|\n ", "](", ")", "![", "- ", "1. ", "|-"),
    "prose": (*"a\n`[]()*<>|: ", "![", "](", ":a:`", ".. "),
    "source": (*'a ([#-\n"', "class A:\n", "if a:\n", "elif a:\n", '"""', "x = 1\n"),
    "sentences": (
        *("a ", "is ", "A ", "is used to ", "because ", "must ", "If ", "raises ", ", ", ". "),
        "a.b: ",
    ),
    "questions": (*'[]"\\a ,1', '{"a":'),
    "trace": (*'[]"a,1\n', '{"event":', "{}\n"),
}
_SCREENED_LETTERS = 1200
_NOTICED_S = 0.01


def _pairs(one: str, other: str) -> dict[str, Make]:
    return {
        f"{one + other!r} repeated": lambda n: (one + other) * n,
        f"{one!r} repeated, then {other!r}": lambda n: one * n + other * n,
        f"{one!r}, then {other!r} repeated": lambda n: one + other * n + "x",
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reader", "one"), [(reader, one) for reader in TOKENS for one in TOKENS[reader]]
)
def test_no_pair_of_tokens_makes_a_text_that_is_read_slowly(
    tmp_path: Path, reader: str, one: str
) -> None:
    read = READERS[reader](tmp_path)
    slow: dict[str, float] = {}
    for other in TOKENS[reader]:
        for name, make in _pairs(one, other).items():
            size = _SCREENED_LETTERS // len(make(1))
            small_s, large_s = (_seconds(read, make(times * size)) for times in (1, 4))
            if large_s > max(_NOTICED_S, 0.5 * _MOST_GROWTH * small_s):
                slow[name] = growth(read, make)
    assert {name: found for name, found in slow.items() if found > _MOST_GROWTH} == {}
