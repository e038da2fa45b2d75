"""Small trees for tests, and the visibility of their tokens by its definition."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rag_accel.kv.dependency.tree import DependencyTree


def characters(text: str) -> list[int]:
    """Return a token for each character."""
    return [ord(letter) for letter in text]


def ancestors(tree: DependencyTree, node: int) -> list[int]:
    """Return a node and all above it, by its parents alone."""
    chain: list[int] = []
    while node >= 0:
        chain.append(node)
        node = int(tree.parents[node])
    return chain


def mask_by_definition(tree: DependencyTree) -> NDArray[np.bool_]:
    """Return ``[tokens, tokens], bool``: row r sees slot s <= r of its own node or one above."""
    nodes = [node for node in range(len(tree)) for _ in tree.node_ids(node)]
    size = len(nodes)
    mask = np.zeros((size, size), np.bool_)
    for row in range(size):
        above = ancestors(tree, nodes[row])
        for slot in range(row + 1):
            mask[row, slot] = nodes[slot] in above
    return mask


def random_paths(seed: int, most: int = 12, letters: str = "abc") -> list[tuple[str, ...]]:
    """Return paths of an odd number of segments each, which share prefixes by chance."""
    chance = random.Random(seed)
    names = [letter * length for letter in letters for length in (1, 2, 3)]
    return [
        tuple(chance.choice(names) for _ in range(chance.choice((1, 3, 5))))
        for _ in range(chance.randint(1, most))
    ]


def drawn(tree: DependencyTree) -> list[str]:
    """Return a line for each node in pre-order, indented by the number of nodes above it."""
    return [
        "  " * (len(ancestors(tree, node)) - 1) + repr(text)[1:-1]
        for node, text in enumerate(tree.texts)
    ]


def paths_of(tree: DependencyTree) -> list[Sequence[str]]:
    """Return the texts from a root to each leaf."""
    inner = set(tree.parents.tolist())
    return [
        [tree.texts[above] for above in reversed(ancestors(tree, node))]
        for node in range(len(tree))
        if node not in inner
    ]
