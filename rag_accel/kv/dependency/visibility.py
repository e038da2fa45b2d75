"""The visibility of tokens in a dependency tree (DepCache, Algorithm 1, phase 2).

    row r sees slot s  <=>  s is in the past of all rows, or
                            node(s) is node(r) or above it, and s <= r

In pre-order the rows that see a slot are one run: from the slot itself to the end of its node's
subtree. So a mask is two comparisons, without a loop over nodes or tokens.

Differs: Algorithm 1 as printed leaves out each node itself, and its rows are the ancestors.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rag_accel.errors import ConfigError
from rag_accel.kv.dependency.tree import DependencyTree, Integers

#: The bound of a mask, in rows: 64 MiB.
MOST_DENSE_ROWS = 8_192


def visible_until(tree: DependencyTree) -> Integers:
    """Return ``[tokens], int32``: slot s is seen by the rows r with ``s <= r < until[s]``."""
    return tree.starts[tree.exits[tree.token_nodes]]


def dense_mask(
    tree: DependencyTree,
    node: int | None = None,
    *,
    past: int = 0,
    most_rows: int = MOST_DENSE_ROWS,
) -> NDArray[np.bool_]:
    """Return the mask of a tree, or of one subtree: ``[rows, past + rows], bool``.

    Args:
        tree: the tree.
        node: the root of the subtree; None for the whole tree.
        past: the number of slots before the rows that all of them see: the head of the prompt, and
            of a subtree the tokens above it.
        most_rows: the bound.

    Raises:
        ConfigError: if there are more rows, no such node, or ``past`` is negative.
    """
    slots, until = _rows(tree, node, past, most_rows)
    mask = np.empty((len(slots), past + len(slots)), np.bool_)
    mask[:, :past] = True
    mask[:, past:] = seen_slots(slots, until)
    return mask


def seen_slots(slots: Integers, until: Integers) -> NDArray[np.bool_]:
    """Return ``[rows, rows], bool``: whether the row of a slot sees another one of the same.

    Args:
        slots: of the rows.
        until: of each, the slot behind the last one that sees it.
    """
    rows = slots[:, None]
    mask = rows < until
    mask &= slots <= rows
    return mask


def _rows(
    tree: DependencyTree, node: int | None, past: int, most_rows: int
) -> tuple[Integers, Integers]:
    """Return the slots of the rows, and which rows each is seen until."""
    if past < 0:
        raise ConfigError("past is a number of tokens", found=past, valid="0 or more")
    if node is not None and not 0 <= node < len(tree):
        raise ConfigError("there is no such node", found=node, valid=f"0 to {len(tree) - 1}")
    slots = range(len(tree.ids)) if node is None else tree.token_range(node)
    if len(slots) > most_rows:
        raise ConfigError(
            "a mask is too large",
            found=f"{len(slots)} rows",
            valid=f"at most {most_rows}",
            hint="compute the subtrees one after the other",
        )
    until = visible_until(tree)[slots.start : slots.stop]
    return np.arange(slots.start, slots.stop, dtype=np.int32), until
