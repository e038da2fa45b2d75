"""Positions of the tokens of a dependency tree, and of what comes behind it.

    a( b c( d ) ), e( f ) behind a head of 10 tokens, one token a segment:

    slot        0  1  2  3  4  5
    shared     10 11 11 12 10 11   behind: 13
    stacked    10 11 11 12 13 14   behind: 15
    preorder   10 11 12 13 14 15   behind: 16

A token by its depth is as far from each token it sees as in its path alone, so a node's keys and
values do not depend on its siblings and can be reused; under ``preorder``, the paper's, they do
(section 4.1 re-encodes positions for that reason, which does not restore what siblings changed).

Under ``stacked`` roots stand one behind the other, so a root moves with those before it. Its tokens
see the head, whose distance then changes: keys and values that are rotated to the new place are not
those computed there. Only under ``shared`` is a node's KV cache that of its path alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, assert_never, get_args

import numpy as np

from rag_accel.errors import ConfigError
from rag_accel.kv.dependency.tree import DependencyTree, Integers

PositionScheme = Literal["shared", "stacked", "preorder"]
POSITION_SCHEMES: tuple[PositionScheme, ...] = get_args(PositionScheme)


@dataclass(frozen=True, slots=True, eq=False)
class TreePositions:
    """The positions of a tree.

    Args:
        positions: ``[tokens], int32``.
        behind: the position of a token that follows the tree, such as the question's first.
    """

    positions: Integers
    behind: int


def tree_positions(
    tree: DependencyTree, scheme: PositionScheme = "shared", begin: int = 0
) -> TreePositions:
    """Return the position of each token.

    Args:
        tree: the tree; for a chain all schemes are the same.
        scheme: ``shared``, by depth, each root at ``begin``; ``stacked``, by depth, each root
            behind the longest path of the one before it; ``preorder``, by slot.
        begin: the position of the first token, right behind the head.

    Raises:
        ConfigError: if there is no such scheme, or a position is negative or over 32 bits.
    """
    check_scheme(scheme)
    num_tokens = len(tree.ids)
    if not 0 <= begin <= np.iinfo(np.int32).max - num_tokens:
        raise ConfigError("a position is out of range", found=begin, valid="0 or more, in 32 bits")
    match scheme:
        case "shared":
            longest = int(tree.token_depths.max(initial=-1)) + 1
            return TreePositions(tree.token_depths + np.int32(begin), begin + longest)
        case "stacked":
            return _stacked(tree, begin)
        case "preorder":
            slots = np.arange(begin, begin + num_tokens, dtype=np.int32)
            return TreePositions(slots, begin + num_tokens)
        case _:
            assert_never(scheme)


def check_scheme(scheme: object) -> None:
    """Raise ConfigError unless this is the name of a scheme."""
    if scheme not in POSITION_SCHEMES:
        raise ConfigError(
            "there is no such scheme of positions",
            found=repr(scheme),
            valid=", ".join(POSITION_SCHEMES),
        )


def _stacked(tree: DependencyTree, begin: int) -> TreePositions:
    roots = tree.roots
    root_starts = tree.starts[roots]
    tokens = np.diff(root_starts, append=np.int32(len(tree.ids)))
    longest = np.zeros(len(roots), np.int32)
    has_tokens = tokens > 0
    if has_tokens.any():  # a run without tokens would end where the next one begins
        deepest = np.maximum.reduceat(tree.token_depths, root_starts[has_tokens])
        longest[has_tokens] = deepest + 1
    bases = begin + np.cumsum(longest, dtype=np.int32) - longest
    positions = tree.token_depths + np.repeat(bases, tokens)
    return TreePositions(positions.astype(np.int32), begin + int(longest.sum()))
