"""How rows are put together in products: each row once, and little padding."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rag_accel.engines.llm.local.batching.rows import SequenceRows
from rag_accel.engines.llm.local.model.attention import attention
from rag_accel.engines.llm.local.model.blocks import (
    BLOCK_SPAN,
    LEAST_BLOCK,
    MOST_PADDING,
    Block,
    decoding_blocks,
    prompt_blocks,
)
from rag_accel.engines.llm.local.model.pool import TensorPool

#: Of each lane, how many slots its row looks at.
reaches = st.dictionaries(st.integers(0, 30), st.integers(1, 500), max_size=12)


def blocks_of(lanes: dict[int, int]) -> list[Block]:
    """Return the blocks of sequences whose row in the forward is 100 more than their lane."""
    return list(decoding_blocks([(lane, reach, lane + 100) for lane, reach in lanes.items()]))


def kept(block: Block) -> list[tuple[int, int]]:
    """Return the lanes and rows that a block computes for use."""
    pairs = list(enumerate(block.rows, block.lanes[0]))
    return pairs if block.kept is None else [pairs[at] for at in block.kept]


@given(reaches)
def test_each_decoding_row_is_computed_once_over_its_own_lane(lanes: dict[int, int]) -> None:
    found = [pair for block in blocks_of(lanes) for pair in kept(block)]
    assert sorted(found) == [(lane, lane + 100) for lane in sorted(lanes)]


@given(reaches)
def test_a_block_has_a_row_for_each_lane_and_reaches_as_far_as_the_longest(
    lanes: dict[int, int],
) -> None:
    for block in blocks_of(lanes):
        assert len(block.rows) == block.lanes[1] - block.lanes[0]
        assert block.reach == max(lanes[lane] for lane, _ in kept(block))


@given(reaches)
def test_padding_is_bounded(lanes: dict[int, int]) -> None:
    for block in blocks_of(lanes):
        needed = sum(lanes[lane] for lane, _ in kept(block))
        assert len(block.rows) * block.reach <= MOST_PADDING * needed


@pytest.mark.parametrize(
    ("lanes", "expected"),
    [
        ({0: 100, 1: 90, 2: 80}, [(0, 3)]),
        ({0: 100, 2: 80}, [(0, 3)]),
        ({0: 100, 9: 80}, [(0, 1), (9, 10)]),
        ({0: 10, 1: 10, 2: 500}, [(0, 2), (2, 3)]),
        ({}, []),
    ],
    ids=["neighbours", "one between", "far apart", "one much longer", "none"],
)
def test_neighbours_of_like_length_are_taken_together(
    lanes: dict[int, int], expected: Sequence[tuple[int, int]]
) -> None:
    assert [block.lanes for block in blocks_of(lanes)] == expected


def pool_of_one_lane() -> tuple[TensorPool, int]:
    pool = TensorPool(layers=1, heads=1, dim=1, context=1024, limit_bytes=1 << 16)
    lane = pool.take(1000)
    assert lane is not None
    return pool, lane


@pytest.mark.parametrize("count", [2, BLOCK_SPAN, BLOCK_SPAN + 1, 3 * BLOCK_SPAN])
def test_rows_of_a_prompt_reach_as_far_as_their_positions(count: int) -> None:
    pool, lane = pool_of_one_lane()
    pool.mark(lane, 10 + count, False)
    span = range(10, 10 + count)
    blocks = list(prompt_blocks(SequenceRows(lane, [0] * count, span, span), 5, pool))
    assert [row for block in blocks for row in block.rows] == list(range(5, 5 + count))
    assert [block.reach for block in blocks] == [block.rows[-1] - 5 + 11 for block in blocks]


def test_rows_that_lie_far_apart_are_in_blocks_of_the_least_size() -> None:
    pool, lane = pool_of_one_lane()
    pool.mark(lane, 960, False)
    places = [*range(40), *range(100, 960, 8)]
    rows = SequenceRows(lane, [0] * len(places), places, places)
    blocks = list(prompt_blocks(rows, 0, pool))
    assert [len(block.rows) for block in blocks[:2]] == [
        len([place for place in places if place < BLOCK_SPAN]),
        LEAST_BLOCK,
    ]


def test_rows_that_come_without_their_runner_are_refused() -> None:
    rows = torch.zeros(1, 1, 1, 1)
    with pytest.raises(ValueError, match="through their runner"):
        attention(torch.nn.Module(), rows, rows, rows, None)
