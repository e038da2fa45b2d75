"""Positions by depth keep each path as it is alone."""

from __future__ import annotations

import numpy as np
import pytest
from tree_kit import characters, mask_by_definition, random_paths

from rag_accel.errors import ConfigError
from rag_accel.kv.dependency.positions import POSITION_SCHEMES, tree_positions
from rag_accel.kv.dependency.tree import DependencyTree, chain_tree, path_tree

BEGIN = 10
TREE = path_tree([("ab", "c"), ("ab", "dd", "e"), ("f",)], characters)


@pytest.mark.parametrize(
    ("scheme", "positions", "behind"),
    [
        #          a   b   c  \n   d   d   e  \n   f  \n
        ("shared", [10, 11, 12, 13, 12, 13, 14, 15, 10, 11], 16),
        ("stacked", [10, 11, 12, 13, 12, 13, 14, 15, 16, 17], 18),
        ("preorder", [10, 11, 12, 13, 14, 15, 16, 17, 18, 19], 20),
    ],
)
def test_positions(scheme: str, positions: list[int], behind: int) -> None:
    found = tree_positions(TREE, scheme, BEGIN)  # type: ignore[arg-type]
    assert found.positions.tolist() == positions
    assert found.positions.dtype == np.int32
    assert found.behind == behind


@pytest.mark.parametrize("scheme", POSITION_SCHEMES)
def test_a_chain_is_placed_as_ordinary_text(scheme: str) -> None:
    tree = chain_tree(["ab", "cde", "f"], characters)
    found = tree_positions(tree, scheme, BEGIN)  # type: ignore[arg-type]
    assert found.positions.tolist() == list(range(10, 16))
    assert found.behind == 16


def seen(tree: DependencyTree, positions: np.ndarray) -> dict[str, list[tuple[int, int]]]:
    """Return the tokens and positions that the last token of each path sees, itself among them."""
    mask = mask_by_definition(tree)
    found: dict[str, list[tuple[int, int]]] = {}
    for row, token in enumerate(tree.ids.tolist()):
        if token == ord("\n"):
            slots = np.flatnonzero(mask[row])
            text = "|".join(tree.texts[node] for node in dict.fromkeys(tree.token_nodes[slots]))
            found[text] = list(
                zip(tree.ids[slots].tolist(), positions[slots].tolist(), strict=True)
            )
    return found


@pytest.mark.parametrize("seed", range(40))
def test_by_depth_each_path_sees_what_it_sees_alone_at_the_same_places(seed: int) -> None:
    paths = random_paths(seed)
    tree = path_tree(paths, characters)
    together = seen(tree, tree_positions(tree, "shared", BEGIN).positions)
    for path in paths:
        alone = path_tree([path], characters)
        expected = seen(alone, tree_positions(alone, "preorder", BEGIN).positions)
        assert expected.items() <= together.items()


@pytest.mark.parametrize("seed", range(40))
def test_stacked_roots_stand_one_behind_the_other_and_keep_their_distances(seed: int) -> None:
    tree = path_tree(random_paths(seed), characters)
    shared = tree_positions(tree, "shared", BEGIN)
    stacked = tree_positions(tree, "stacked", BEGIN)
    at = BEGIN
    for root in tree.roots.tolist():
        slots = slice(tree.token_range(root).start, tree.token_range(root).stop)
        assert (stacked.positions[slots] - shared.positions[slots] == at - BEGIN).all()
        assert int(stacked.positions[slots].min()) == at
        at = int(stacked.positions[slots].max()) + 1
    assert stacked.behind == at


def test_preorder_places_a_path_by_its_siblings() -> None:
    pruned = path_tree([("ab", "dd", "e")], characters)
    whole = tree_positions(TREE, "preorder", BEGIN).positions
    assert (
        seen(TREE, whole)["ab|dd|e|\n"]
        != seen(pruned, tree_positions(pruned, "preorder", BEGIN).positions)["ab|dd|e|\n"]
    )


def test_roots_without_tokens_take_no_place() -> None:
    def encode(text: str) -> list[int]:
        return [] if text in ("x", "\n") else characters(text)

    tree = path_tree([("x",), ("a", "b"), ("x", "x"), ("c",)], encode)
    assert tree_positions(tree, "stacked").positions.tolist() == [0, 1, 2]
    empty = path_tree([("x",)], encode)
    for scheme in POSITION_SCHEMES:
        assert tree_positions(empty, scheme, BEGIN).behind == BEGIN


def test_bad_schemes_and_places_are_refused() -> None:
    with pytest.raises(ConfigError, match="'depth'; valid: shared, stacked, preorder"):
        tree_positions(TREE, "depth")  # type: ignore[arg-type]
    for begin in (-1, 2**31 - 5):
        with pytest.raises(ConfigError, match="out of range"):
            tree_positions(TREE, begin=begin)
