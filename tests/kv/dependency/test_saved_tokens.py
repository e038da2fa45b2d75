"""A tree that has more tokens than its lines is none, and lines are tokenised only in doubt."""

from __future__ import annotations

import re

import pytest

from rag_accel.kv.dependency.lines import PathLines, find_path_lines
from rag_accel.kv.dependency.tokens import saves_tokens
from rag_accel.kv.dependency.tree import Encode, path_tree
from rag_accel.kv.segments import TextSpan

SHORT = ("a -> b -> c", "a -> d -> e")
LONG = tuple(f"a name of many a word -> {at} -> {at}" for at in range(4))


def prompt(paths: tuple[str, ...]) -> tuple[str, PathLines]:
    """Return a prompt, and its paths."""
    text = "Facts:\n" + "\n".join(paths) + "\nWhy?"
    spans = [TextSpan(text.index(path), text.index(path) + len(path), path) for path in paths]
    lines = find_path_lines(text, spans)
    assert lines is not None
    return text, lines


class Counted:
    """A tokenizer of what a pattern finds, that notes what it is given."""

    def __init__(self, pattern: str) -> None:
        self._pattern = re.compile(pattern)
        self.given: list[str] = []

    def __call__(self, text: str) -> list[int]:
        self.given.append(text)
        return [len(found) for found in self._pattern.findall(text)]


def by_words() -> Counted:
    return Counted(r"\S+|\n")


def by_lines() -> Counted:
    """Return a tokenizer to which a line is one token, as is each piece of it alone."""
    return Counted(r"[^\n]+\n?|\n")


def saves(paths: tuple[str, ...], encode: Encode) -> bool:
    text, lines = prompt(paths)
    return saves_tokens(text, lines, path_tree(lines.paths, encode), encode)


def test_paths_that_share_a_name_save_tokens() -> None:
    assert saves(SHORT, by_words())
    assert saves(LONG, by_words())


def test_a_tree_with_more_tokens_than_its_lines_saves_none() -> None:
    assert not saves(SHORT, by_lines())
    assert not saves(LONG, by_lines())


@pytest.mark.parametrize(("paths", "is_read"), [(SHORT, True), (LONG, False)])
def test_lines_are_tokenised_where_little_is_merged(paths: tuple[str, ...], is_read: bool) -> None:
    encode = by_words()
    assert saves(paths, encode)
    region = "\n".join(paths) + "\n"
    assert (encode.given.count(region) == 1) == is_read


def test_an_equal_number_of_tokens_is_enough() -> None:
    """Of a tree it is known what later prompts will share, too."""
    text, lines = prompt(SHORT)
    tree = path_tree(lines.paths, by_words())
    assert saves_tokens(text, lines, tree, lambda piece: [0] * len(tree.ids))
    assert not saves_tokens(text, lines, tree, lambda piece: [0] * (len(tree.ids) - 1))
