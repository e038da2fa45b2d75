"""A token attends to its own path and to nothing else (DepCache, Algorithm 1, phase 2)."""

from __future__ import annotations

import numpy as np
import pytest
from tree_kit import ancestors, characters, mask_by_definition, random_paths

from rag_accel.errors import ConfigError
from rag_accel.kv.dependency.tree import DependencyTree, chain_tree, path_tree
from rag_accel.kv.dependency.visibility import dense_mask, visible_until


def printed_mask(tree: DependencyTree) -> np.ndarray:
    """Return Algorithm 1, lines 6-12, to the letter: ``M[u, v] = 1`` for u an ancestor of v."""
    mask = np.zeros((len(tree), len(tree)), np.bool_)
    for node in range(len(tree)):
        for above in ancestors(tree, node)[1:]:
            mask[above, node] = True
    return mask


@pytest.mark.parametrize("seed", range(200))
def test_the_mask_is_that_of_the_definition(seed: int) -> None:
    tree = path_tree(random_paths(seed), characters)
    expected = mask_by_definition(tree)
    assert np.array_equal(dense_mask(tree), expected)


@pytest.mark.parametrize("seed", range(20))
def test_a_subtree_sees_its_past_whole_and_itself_as_in_the_whole_tree(seed: int) -> None:
    tree = path_tree(random_paths(seed), characters)
    whole = mask_by_definition(tree)
    for node in range(len(tree)):
        rows = tree.token_range(node)
        mask = dense_mask(tree, node, past=3)
        assert mask[:, :3].all()
        assert np.array_equal(mask[:, 3:], whole[rows.start : rows.stop, rows.start : rows.stop])


def test_algorithm_1_as_printed_is_transposed_and_lacks_each_node_itself() -> None:
    paths = [("a", "r", "b"), ("a", "r", "c"), ("d", "s", "a")]
    tree = path_tree(paths, lambda text: [ord(text)])
    printed = printed_mask(tree)
    assert not np.diag(printed).any()
    assert np.array_equal(dense_mask(tree), printed.T | np.eye(len(tree), dtype=np.bool_))


@pytest.mark.parametrize(
    "tree", [path_tree([("ab", "c", "de")], characters), chain_tree(["ab", "c"], characters)]
)
def test_a_chain_is_ordinary_causal_attention(tree: DependencyTree) -> None:
    size = len(tree.ids)
    assert np.array_equal(dense_mask(tree), np.tri(size, dtype=np.bool_))
    assert tree.token_depths.tolist() == list(range(size))


def test_each_slot_is_seen_by_one_run_of_rows() -> None:
    tree = path_tree([("a", "r", "b"), ("a", "r", "c"), ("d",)], characters)
    assert tree.text == "arb\nc\nd\n"
    assert visible_until(tree).tolist() == [6, 6, 4, 4, 6, 6, 8, 8]


def test_a_mask_larger_than_its_bound_is_refused() -> None:
    tree = path_tree([("a" * 40,)], characters)
    with pytest.raises(ConfigError, match=r"41 rows.*at most 40.*one after the other"):
        dense_mask(tree, most_rows=40)
    assert dense_mask(tree, most_rows=41).shape == (41, 41)


@pytest.mark.parametrize("node", [-1, 2])
def test_a_node_that_is_none_of_the_tree_is_refused(node: int) -> None:
    with pytest.raises(ConfigError, match="no such node"):
        dense_mask(path_tree([("a",)], characters), node)


def test_a_negative_past_is_refused() -> None:
    with pytest.raises(ConfigError, match="past"):
        dense_mask(path_tree([("a",)], characters), past=-1)
