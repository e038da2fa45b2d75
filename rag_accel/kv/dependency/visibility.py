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

#: Bounds of a mask, in rows: 64 MiB dense, 128 MiB packed.
MOST_DENSE_ROWS = 8_192
MOST_PACKED_ROWS = 32_768

#: Rows computed before they are packed, few enough to stay in a processor's cache.
_BLOCK = 64


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
    slots, until = _rows(tree, node, past, most_rows, "packed_mask takes an eighth of the memory")
    mask = np.empty((len(slots), past + len(slots)), np.bool_)
    mask[:, :past] = True
    _fill(mask[:, past:], slots, slots, until)
    return mask


def packed_mask(
    tree: DependencyTree,
    node: int | None = None,
    *,
    past: int = 0,
    most_rows: int = MOST_PACKED_ROWS,
) -> NDArray[np.uint8]:
    """Return ``dense_mask`` by bits: ``[rows, ceil((past + rows) / 8)], uint8``.

    Column c is bit ``c % 8`` of byte ``c // 8``, the least bit first, as FlashInfer has it; the
    bits behind the last column are 0. Arguments and errors are those of ``dense_mask``.
    """
    slots, until = _rows(tree, node, past, most_rows, "compute the subtrees one after the other")
    num_rows = len(slots)
    packed = np.empty((num_rows, -(-(past + num_rows) // 8)), np.uint8)
    block = np.ones((min(_BLOCK, num_rows), past + num_rows), np.bool_)
    for start in range(0, num_rows, _BLOCK):
        rows = slots[start : start + _BLOCK]
        _fill(block[: len(rows), past:], rows, slots, until)
        packed[start : start + len(rows)] = np.packbits(
            block[: len(rows)], axis=1, bitorder="little"
        )
    return packed


def _fill(mask: NDArray[np.bool_], rows: Integers, slots: Integers, until: Integers) -> None:
    np.less(rows[:, None], until, out=mask)
    mask &= slots <= rows[:, None]


def _rows(
    tree: DependencyTree, node: int | None, past: int, most_rows: int, hint: str
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
            hint=hint,
        )
    until = visible_until(tree)[slots.start : slots.stop]
    return np.arange(slots.start, slots.stop, dtype=np.int32), until
