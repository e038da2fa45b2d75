"""Units of computation of a partly cached tree: the subtrees that are missing.

    cached: a, b of  a( b( c d ) e( f ) )  ->  c behind a b;  d behind a b;  e( f ) behind a

A tree of which nothing is cached is one unit for each root. What is missing below one node falls
into a unit for each child, so that units see nothing of each other and can run in one batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rag_accel.errors import ConfigError
from rag_accel.kv.dependency.tree import NO_NODE, DependencyTree


@dataclass(frozen=True, slots=True)
class ComputeUnit:
    """A subtree to compute: all of its nodes, behind the nodes above it.

    Args:
        node: its root; its tokens are ``tree.token_range(node)``, its mask is
            ``dense_mask(tree, node, past=...)``.
        past: the nodes above it, the root of the tree first. All are cached.
        past_tokens: the number of their tokens.
    """

    node: int
    past: tuple[int, ...]
    past_tokens: int


def compute_units(
    tree: DependencyTree, is_cached: Sequence[bool] | NDArray[np.bool_]
) -> tuple[ComputeUnit, ...]:
    """Return the maximal subtrees that are not cached, in pre-order.

    Args:
        tree: the tree.
        is_cached: ``[nodes], bool``. The parent of a cached node is cached, as an eviction of
            leaves only leaves it.

    Raises:
        ConfigError: if there is no value for each node, or the parent of a cached node is missing.
    """
    cached = np.asarray(is_cached, dtype=np.bool_)
    if cached.shape != (len(tree),):
        raise ConfigError(
            "is_cached needs a value for each node",
            found=f"shape {cached.shape}",
            valid=f"shape ({len(tree)},)",
        )
    is_root = tree.parents == NO_NODE
    has_past = is_root | cached[tree.parents]
    orphans = np.flatnonzero(cached & ~has_past)
    if len(orphans):
        raise ConfigError(
            "a node is cached and its parent is not",
            found=f"node {int(orphans[0])}",
            hint="evict a node before its parent",
        )
    return tuple(
        ComputeUnit(node, tree.ancestors(node), int(tree.depths[node]))
        for node in np.flatnonzero(~cached & has_past).tolist()
    )
