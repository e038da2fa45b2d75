"""The division of a forward's rows into products, each over neighbouring lanes of the pool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from rag_accel.engines.llm.local.batching.rows import SequenceRows, Subtrees
from rag_accel.engines.llm.local.model.pool import TensorPool

#: Rows of a prompt that look at their lane together: at least so many, and more while the
#: positions of all lie this close, since each row of a block is multiplied with all that its last
#: row sees. Blocks this size are enough for two threads to share out evenly.
LEAST_BLOCK = 32
BLOCK_SPAN = 256
#: A product of several lanes may compute so many times the scores that are needed.
MOST_PADDING = 2.0


@dataclass(frozen=True, slots=True)
class TreeRows:
    """A part of the rows of a tree, which see some of the same tree's rows.

    Args:
        slots: of the tree's rows, as far as the block reaches.
        seen: ``[row, slot]`` of the rows of this part.
    """

    slots: range
    seen: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Block:
    """Rows that look at neighbouring lanes in one product, as many in each lane.

    Args:
        lanes: the first lane and the one behind the last.
        reach: how many slots of the lanes are looked at.
        rows: which rows of the forward look, lane by lane; in a lane that is only passed over, any.
        kept: the results that are used, by their place in ``rows``; None for all.
        tree: the part of a tree that they are; None where they see all slots of lower positions.
    """

    lanes: tuple[int, int]
    reach: int
    rows: Sequence[int]
    kept: Sequence[int] | None = None
    tree: TreeRows | None = None


def prompt_blocks(rows: SequenceRows, start: int, pool: TensorPool) -> Iterator[Block]:
    """Yield blocks of the rows of one sequence, which begin at row ``start`` of the forward."""
    lanes, first = (rows.lane, rows.lane + 1), 0
    slots = range(rows.slots[0], rows.slots[-1] + 1)
    mask = rows.visible.mask(slots) if isinstance(rows.visible, Subtrees) else None
    while first < len(rows):
        behind = _block_end(rows.positions, first)
        reach = pool.reach(rows.lane, max(rows.positions[first:behind]))
        # In a lane whose tokens are in their places, a block does not reach all of its tree.
        reached = range(slots.start, min(slots.stop, reach))
        part = None if mask is None else TreeRows(reached, mask[first:behind, : len(reached)])
        places = range(start + first, start + behind)
        yield Block(lanes, reach, places, tree=part)
        first = behind


def whole_block(rows: SequenceRows, start: int, pool: TensorPool) -> Block:
    """Return all rows of one sequence, which begin at row ``start`` of the forward, as a block."""
    reach = pool.reach(rows.lane, max(rows.positions))
    return Block((rows.lane, rows.lane + 1), reach, range(start, start + len(rows)))


def _block_end(positions: Sequence[int], first: int) -> int:
    near = positions[first] + BLOCK_SPAN
    behind = min(first + LEAST_BLOCK, len(positions))
    while behind < len(positions) and positions[behind] < near:
        behind += 1
    return behind


def decoding_blocks(rows: Sequence[tuple[int, int, int]]) -> Iterator[Block]:
    """Yield blocks of sequences with one row each.

    Neighbouring lanes are taken together, passing over others between them, as long as padding
    to the longest costs less than ``MOST_PADDING``.

    Args:
        rows: of each sequence its lane, how many slots it looks at, and its row in the forward.
    """
    group: list[tuple[int, int, int]] = []
    for row in sorted(rows):
        if group and _padding([*group, row]) > MOST_PADDING:
            yield _decoding_block(group)
            group = []
        group.append(row)
    if group:
        yield _decoding_block(group)


def _padding(group: Sequence[tuple[int, int, int]]) -> float:
    lanes = group[-1][0] - group[0][0] + 1
    return lanes * max(reach for _, reach, _ in group) / sum(reach for _, reach, _ in group)


def _decoding_block(group: Sequence[tuple[int, int, int]]) -> Block:
    first, last = group[0][0], group[-1][0]
    row_of = {lane: row for lane, _, row in group}
    lanes = range(first, last + 1)
    rows = [row_of.get(lane, group[0][2]) for lane in lanes]
    kept = None if len(group) == len(lanes) else [lane - first for lane in row_of]
    return Block((first, last + 1), max(reach for _, reach, _ in group), rows, kept)


def placed(rows: Sequence[SequenceRows]) -> list[tuple[SequenceRows, int]]:
    """Return items with the place of their first row in the forward."""
    starts = [0, *accumulate(map(len, rows))]
    return list(zip(rows, starts, strict=False))


def single_row_blocks(rows: Sequence[SequenceRows], pool: TensorPool) -> Iterator[Block]:
    """Yield the blocks of sequences with one row each in a forward."""
    return decoding_blocks(
        [
            (item.lane, pool.reach(item.lane, item.positions[0]), start)
            for item, start in placed(rows)
            if len(item) == 1
        ]
    )
