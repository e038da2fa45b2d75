"""What a partly cached tree lacks falls into subtrees behind cached ancestors."""

from __future__ import annotations

import random

import numpy as np
import pytest
from tree_kit import ancestors, characters, mask_by_definition, random_paths

from rag_accel.errors import ConfigError
from rag_accel.kv.dependency.tree import DependencyTree, path_tree
from rag_accel.kv.dependency.units import ComputeUnit, compute_units
from rag_accel.kv.dependency.visibility import dense_mask

#       0 ab, 1 c, 2 end, 3 dd, 4 e, 5 end, 6 f, 7 end
TREE = path_tree([("ab", "c"), ("ab", "dd", "e"), ("f",)], characters)


@pytest.mark.parametrize(
    ("cached", "expected"),
    [
        ("", [(0, (), 0), (6, (), 0)]),
        ("0", [(1, (0,), 2), (3, (0,), 2), (6, (), 0)]),
        ("013", [(2, (0, 1), 3), (4, (0, 3), 4), (6, (), 0)]),
        ("01234567", []),
        ("67", [(0, (), 0)]),
        ("0123456", [(7, (6,), 1)]),
    ],
)
def test_units(cached: str, expected: list[tuple[int, tuple[int, ...], int]]) -> None:
    mask = [str(node) in cached for node in range(len(TREE))]
    assert compute_units(TREE, mask) == tuple(ComputeUnit(*unit) for unit in expected)


def closed_choice(tree: DependencyTree, chance: random.Random) -> np.ndarray:
    """Return a mask of nodes whose parents are chosen too."""
    chosen = np.zeros(len(tree), np.bool_)
    for node, above in enumerate(tree.parents.tolist()):
        chosen[node] = (above < 0 or chosen[above]) and chance.random() < 0.7
    return chosen


@pytest.mark.parametrize("seed", range(100))
def test_units_compute_each_missing_node_once_and_see_what_the_whole_tree_lets_them(
    seed: int,
) -> None:
    tree = path_tree(random_paths(seed), characters)
    cached = closed_choice(tree, random.Random(seed))
    whole = mask_by_definition(tree)
    computed: list[int] = []
    for unit in compute_units(tree, cached):
        computed += range(unit.node, int(tree.exits[unit.node]))
        assert list(unit.past) == ancestors(tree, unit.node)[:0:-1]
        assert all(cached[node] for node in unit.past)
        past = [slot for node in unit.past for slot in _slots(tree, node)]
        assert unit.past_tokens == len(past)
        rows = list(tree.token_range(unit.node))
        mask = dense_mask(tree, unit.node, past=unit.past_tokens)
        assert np.array_equal(whole[np.ix_(rows, past + rows)], mask)
        assert whole[rows].sum() == mask.sum()
    assert computed == np.flatnonzero(~cached).tolist()


def _slots(tree: DependencyTree, node: int) -> range:
    return range(int(tree.starts[node]), int(tree.starts[node + 1]))


def test_a_cached_node_without_its_parent_is_refused() -> None:
    with pytest.raises(ConfigError, match="parent is not; found node 4"):
        compute_units(TREE, [node == 4 for node in range(len(TREE))])


@pytest.mark.parametrize("cached", [[], [True] * 7, [[True] * 8]])
def test_a_value_for_each_node_is_needed(cached: list[bool]) -> None:
    with pytest.raises(ConfigError, match=r"shape \(8,\)"):
        compute_units(TREE, cached)
