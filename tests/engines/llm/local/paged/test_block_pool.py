"""Blocks are bounded in bytes, lanes keep what was written, and nothing leaks to the next one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rag_accel.engines.llm.local.paged import block_pool
from rag_accel.engines.llm.local.paged.block_pool import BlockPool
from rag_accel.engines.llm.local.paged.sequences import BLOCK, block_count
from rag_accel.errors import ConfigError
from rag_accel.kv.entry import KeyValues

#: Keys and values of two layers with one head of two components.
BLOCK_BYTES = 2 * 2 * 2 * 4 * BLOCK
CONTEXT = 500
FREQUENCIES = torch.tensor([0.5])


def pool_of(blocks: int, context: int = CONTEXT) -> BlockPool:
    """Return a pool with so many blocks."""
    sizes = {"layers": 2, "heads": 1, "dim": 2, "context": context}
    return BlockPool(**sizes, limit_bytes=blocks * BLOCK_BYTES, frequencies=FREQUENCIES)


def state(tokens: int, value: float, position: int) -> KeyValues:
    filled = torch.full((2, 1, tokens, 2), value)
    return KeyValues(filled, -filled, position)


class Lanes(RuleBasedStateMachine):
    """Takes, writes, forks and frees in any order, beside a list of what must be held."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = pool_of(40)
        self.most: dict[int, int] = {}
        self.values: dict[int, list[float]] = {}
        self.value = 0.0

    def _draw(self, data: Any) -> int:
        return data.draw(st.sampled_from(sorted(self.most)))

    @rule(tokens=st.integers(1, CONTEXT + 100))
    def take(self, tokens: int) -> None:
        free = 40 - self.pool.held_bytes // BLOCK_BYTES
        lane = self.pool.take(tokens)
        assert (lane is None) == (tokens > CONTEXT or block_count(tokens) > free)
        if lane is not None:
            assert lane not in self.most
            self.most[lane], self.values[lane] = tokens, []

    @precondition(lambda self: self.most)
    @rule(data=st.data(), share=st.floats(0, 1))
    def write(self, data: Any, share: float) -> None:
        lane = self._draw(data)
        values = self.values[lane]
        tokens = int(share * (self.most[lane] - len(values)))
        if tokens:
            self.value += 1.0
            self.pool.write(lane, len(values), state(tokens, self.value, len(values)))
            values += [self.value] * tokens

    @precondition(lambda self: self.most)
    @rule(data=st.data())
    def free(self, data: Any) -> None:
        lane = self._draw(data)
        self.pool.free(lane)
        del self.most[lane], self.values[lane]

    @precondition(lambda self: self.most)
    @rule(data=st.data(), share=st.floats(0, 1), more=st.integers(1, 100))
    def fork(self, data: Any, share: float, more: int) -> None:
        source = self._draw(data)
        shared = int(share * len(self.values[source]))
        tokens = min(CONTEXT, shared + more)
        held = self.pool.held_bytes
        lane = self.pool.fork(source, shared, tokens)
        new = block_count(tokens) - shared // BLOCK
        assert (lane is None) == (new > 40 - held // BLOCK_BYTES)
        if lane is not None:
            assert self.pool.held_bytes == held + new * BLOCK_BYTES
            self.most[lane], self.values[lane] = tokens, self.values[source][:shared]

    @precondition(lambda self: self.most and self.pool.held_bytes < 20 * BLOCK_BYTES)
    @rule(data=st.data(), share=st.floats(0, 1))
    def write_again(self, data: Any, share: float) -> None:
        lane = self._draw(data)
        values = self.values[lane]
        first = int(share * len(values))
        if count := min(50, len(values) - first):
            self.value += 1.0
            self.pool.write(lane, first, state(count, self.value, first))
            values[first : first + count] = [self.value] * count

    @invariant()
    def lanes_hold_what_was_written(self) -> None:
        for lane, values in self.values.items():
            found = self.pool.read(lane, range(len(values)))
            assert found.keys[0, 0, :, 0].tolist() == values
            assert found.values[1, 0, :, 1].tolist() == [-value for value in values]

    @invariant()
    def blocks_are_counted_and_free_ones_are_empty(self) -> None:
        taken = [*{block for lane in self.most for block in self.pool.table(lane).tolist()}]
        assert self.pool.held_bytes == len(taken) * BLOCK_BYTES
        for array in self.pool.arrays:
            assert not np.delete(array, taken, axis=1).any()


Lanes.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestLanes = Lanes.TestCase


def test_part_of_a_lane_moves_with_its_keys_rotated() -> None:
    pool = pool_of(10)
    source, target = pool.take(100), pool.take(100)
    assert source is not None
    assert target is not None
    keys = torch.arange(2 * 90 * 2, dtype=torch.float32).reshape(2, 1, 90, 2)
    pool.write(source, 0, KeyValues(keys, keys + 1, 0))
    pool.write(target, 30, pool.read(source, range(21, 85)))
    found = pool.read(target, range(30, 94))
    angle = torch.tensor(0.5 * 9)
    turn = torch.tensor([[angle.cos(), angle.sin()], [-angle.sin(), angle.cos()]])
    assert torch.equal(found.values, (keys + 1)[:, :, 21:85])
    assert torch.allclose(found.keys, keys[:, :, 21:85] @ turn, atol=1e-3)


def test_bfloat16_is_kept_bit_by_bit() -> None:
    sizes = {"layers": 1, "heads": 1, "dim": 2, "context": 64, "limit_bytes": 1 << 12}
    pool = BlockPool(**sizes, dtype=torch.bfloat16, frequencies=FREQUENCIES)
    lane = pool.take(40)
    assert lane is not None
    keys = torch.randn(1, 1, 40, 2).bfloat16()
    pool.write(lane, 0, KeyValues(keys, -keys, 0))
    found = pool.read(lane, range(5, 40))
    assert torch.equal(found.keys, keys[:, :, 5:])
    assert found.values.dtype == torch.bfloat16


def test_what_was_moved_is_not_read() -> None:
    pool = pool_of(2)
    lane = pool.take(10)
    assert lane is not None
    pool.mark(lane, 4, is_moved=True)
    with pytest.raises(ValueError, match="in their places"):
        pool.read(lane, range(4))


@pytest.mark.parametrize(
    "use",
    [
        lambda pool, lane: pool.write(lane, 5, state(6, 1.0, 0)),
        lambda pool, lane: pool.mark(lane, 11, False),
        lambda pool, lane: pool.free(lane + 1),
        lambda pool, lane: pool.fork(lane, 1, 1),
        lambda pool, lane: pool.read(lane, range(1)),
    ],
    ids=["write", "mark", "free", "fork", "read"],
)
def test_lanes_are_used_within_what_they_were_taken_for(use: Any) -> None:
    pool = pool_of(2)
    lane = pool.take(10)
    with pytest.raises(ValueError, match="lane"):
        use(pool, lane)


def test_keys_that_cannot_be_moved_are_not_written() -> None:
    pool = BlockPool(layers=1, heads=1, dim=2, context=64, limit_bytes=1 << 12)
    lane = pool.take(10)
    assert lane is not None
    with pytest.raises(ValueError, match="cannot be moved"):
        pool.write(lane, 0, KeyValues(torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 2, 2), 0))


def test_a_pool_that_holds_no_block_is_refused() -> None:
    with pytest.raises(ConfigError) as refused:
        pool_of(0)
    assert f"at least {BLOCK_BYTES}" in str(refused.value)


def test_memory_that_the_system_refuses_is_a_named_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(block_pool.np, "zeros", refuse)
    with pytest.raises(ConfigError, match="no memory for the blocks"):
        pool_of(2)
