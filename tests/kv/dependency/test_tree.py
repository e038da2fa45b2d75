"""Relation paths merge into a prefix tree over segments (DepCache, Algorithm 1, phase 1)."""

from __future__ import annotations

import unicodedata
from collections import Counter

import numpy as np
import pytest
from tree_kit import ancestors, characters, drawn, paths_of, random_paths

from rag_accel.engine_api import GraphPath
from rag_accel.errors import ConfigError
from rag_accel.kv.dependency.paths import PATH_END, path_segments
from rag_accel.kv.dependency.tree import path_tree

FOUNDED = (
    ("Elon Musk", " -> founded ->", " SpaceX", " -> launched ->", " Falcon 9"),
    ("Elon Musk", " -> founded ->", " SpaceX", " -> located in ->", " Texas"),
    ("Tesla", " -> makes ->", " cars"),
    ("Elon Musk", " -> likes ->", " Mars"),
)


def test_paths_share_their_common_prefixes_in_the_order_of_first_appearance() -> None:
    tree = path_tree(FOUNDED, characters)
    assert drawn(tree) == [
        "Elon Musk",
        "   -> founded ->",
        "     SpaceX",
        "       -> launched ->",
        "         Falcon 9",
        "          \\n",
        "       -> located in ->",
        "         Texas",
        "          \\n",
        "   -> likes ->",
        "     Mars",
        "      \\n",
        "Tesla",
        "   -> makes ->",
        "     cars",
        "      \\n",
    ]
    assert tree.exits.tolist() == [12, 9, 9, 6, 6, 6, 9, 9, 9, 12, 12, 12, 16, 16, 16, 16]


def test_arrays_of_nodes_and_tokens() -> None:
    tree = path_tree([("ab", "c", "de"), ("ab", "c", "f"), ("g",)], characters)
    assert tree.texts == ("ab", "c", "de", "\n", "f", "\n", "g", "\n")
    assert tree.parents.tolist() == [-1, 0, 1, 2, 1, 4, -1, 6]
    assert tree.exits.tolist() == [6, 6, 4, 4, 6, 6, 8, 8]
    assert tree.starts.tolist() == [0, 2, 3, 5, 6, 7, 8, 9, 10]
    assert tree.depths.tolist() == [0, 2, 3, 5, 3, 4, 0, 1]
    assert "".join(map(chr, tree.ids)) == tree.text == "abcde\nf\ng\n"
    assert tree.token_nodes.tolist() == [0, 0, 1, 2, 2, 3, 4, 5, 6, 7]
    assert tree.token_depths.tolist() == [0, 1, 2, 3, 4, 5, 3, 4, 0, 1]
    for array in (tree.exits, tree.depths, tree.ids, tree.token_nodes, tree.token_depths):
        assert array.dtype == np.int32
        assert not array.flags.writeable


@pytest.mark.parametrize("seed", range(40))
def test_each_path_stands_once_in_the_tree_however_often_it_is_given(seed: int) -> None:
    paths = random_paths(seed)
    tree = path_tree(paths + paths[::-1], characters)
    found = Counter(tuple(path) for path in paths_of(tree))
    assert found == Counter({(*path, PATH_END): 1 for path in paths})
    for node in range(len(tree)):
        above = ancestors(tree, node)[1:]
        assert int(tree.depths[node]) == sum(len(tree.texts[other]) for other in above)
        inside = [other for other in range(len(tree)) if node in ancestors(tree, other)]
        assert inside == list(range(node, int(tree.exits[node])))


def test_a_path_that_begins_another_one_keeps_its_end() -> None:
    longer = path_tree([("a", "r", "b", "s", "c")], characters)
    both = path_tree([("a", "r", "b", "s", "c"), ("a", "r", "b")], characters)
    first = path_tree([("a", "r", "b"), ("a", "r", "b", "s", "c")], characters)
    assert [longer.text, both.text, first.text] == ["arbsc\n", "arbsc\n\n", "arb\nsc\n"]
    assert sorted(map(tuple, paths_of(both))) == sorted(map(tuple, paths_of(first)))


def test_a_text_is_encoded_once_though_it_stands_in_many_places() -> None:
    calls: Counter[str] = Counter()

    def encode(text: str) -> list[int]:
        calls[text] += 1
        return characters(text)

    path_tree([("a", "r", "b", "r", "a"), ("b", "r", "a"), ("b", "s", "a")], encode)
    assert calls == Counter(["a", "r", "b", "s", "\n"])


def test_segments_are_compared_letter_by_letter() -> None:
    composed, apart = "caf\u00e9", unicodedata.normalize("NFD", "caf\u00e9")
    tree = path_tree(
        [(composed, "→", "東京"), (apart, "→", "東京"), ("👩\u200d🚀", "→", "ß")], characters
    )
    assert tree.texts == (
        composed,
        "→",
        "東京",
        "\n",
        apart,
        "→",
        "東京",
        "\n",
        "👩\u200d🚀",
        "→",
        "ß",
        "\n",
    )


def test_a_segment_may_have_no_tokens() -> None:
    def encode(text: str) -> list[int]:
        return [] if text == "\u200b" else characters(text)

    tree = path_tree([("\u200b", "r", "a"), ("b", "\u200b", "\u200b")], encode)
    assert "".join(map(chr, tree.ids)) == "ra\nb\n"
    assert tree.starts.tolist() == [0, 0, 1, 2, 3, 4, 4, 4, 5]


@pytest.mark.parametrize(
    "path",
    [
        GraphPath(("a",), (), ()),
        GraphPath(("a", "b"), ("r",), (True,)),
        GraphPath(("a", "b", " c"), ("r", "s t"), (False, True)),
    ],
)
def test_segments_of_a_walked_path_spell_its_text(path: GraphPath) -> None:
    segments = path_segments(path)
    assert "".join(segments) == path.text
    assert len(segments) == 2 * len(path.relations) + 1


def test_directions_tell_segments_apart() -> None:
    onward = path_segments(GraphPath(("a", "b"), ("r",), (True,)))
    back = path_segments(GraphPath(("a", "b"), ("r",), (False,)))
    assert onward == ("a", " -> r ->", " b")
    assert back == ("a", " <- r <-", " b")


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        ([], "no path"),
        ([()], "no segment"),
        ([("a", "", "b")], "empty segment"),
        (["abc"], "one text"),
        ([("a", 1, "b")], "int"),
        ([("a",), 5], "int"),
        (5, "int"),
        ("abc", "one text"),
    ],
)
def test_bad_paths_are_refused_by_name(paths: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        path_tree(paths, characters)  # type: ignore[arg-type]


@pytest.mark.parametrize("ids", [[0.5], [-1], [2**31], [[1]], ["a"], None, [True]])
def test_tokens_that_are_none_are_refused_with_their_segment(ids: object) -> None:
    with pytest.raises(ConfigError, match="'ab'"):
        path_tree([("ab",)], lambda text: ids)  # type: ignore[arg-type,return-value]


def test_a_wide_tree_is_built_without_looking_at_all_pairs() -> None:
    paths = [("root", f" r{number} ", f"e{number}") for number in range(5_000)]
    tree = path_tree(paths, characters)
    assert len(tree) == 15_001
    assert int(tree.exits[0]) == 15_001


def test_a_deep_tree_needs_no_recursion() -> None:
    tree = path_tree([[f"s{number % 7}" for number in range(10_001)]], characters)
    assert len(tree.ids) == 20_003
    assert tree.depths.tolist() == list(range(0, 20_003, 2))
