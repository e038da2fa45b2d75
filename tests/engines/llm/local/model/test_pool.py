"""The bookkeeping of lanes: bytes are bounded, contents are kept, and nothing leaks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rag_accel.engines.llm.local.model.pool import NEVER, TensorPool
from rag_accel.errors import ConfigError

#: Keys and values of two layers with one head of two components, and a position.
SLOT_BYTES = 2 * 2 * 2 * 4 + 4
CONTEXT = 1500


def pool_of(slots: int, context: int = CONTEXT) -> TensorPool:
    """Return a pool with room for so many slots in all."""
    return TensorPool(layers=2, heads=1, dim=2, context=context, limit_bytes=slots * SLOT_BYTES)


def write(pool: TensorPool, lane: int, tokens: int, value: float) -> None:
    """Write the first slots of a lane as a forward would."""
    slots = torch.arange(tokens)
    pool.mark(lane, tokens, False)
    pool.claim(torch.full((tokens,), lane), slots, slots)
    pool.keys[:, lane, :, :tokens] = value
    pool.values[:, lane, :, :tokens] = -value


def holds(pool: TensorPool, lane: int, tokens: int, value: float) -> bool:
    """Tell whether a lane holds what was written, and nothing behind it."""
    keys, values = pool.keys[:, lane], pool.values[:, lane]
    return (
        bool((keys[:, :, :tokens] == value).all() and (values[:, :, :tokens] == -value).all())
        and not keys[:, :, tokens:].any()
        and not values[:, :, tokens:].any()
        and pool.positions[lane, :tokens].tolist() == list(range(tokens))
        and bool((pool.positions[lane, tokens:] == NEVER).all())
    )


class Lanes(RuleBasedStateMachine):
    """Takes, writes, forks and frees in any order, beside a list of what must be held."""

    def __init__(self) -> None:
        super().__init__()
        self.limit = 3000
        self.pool = pool_of(self.limit)
        self.held: dict[int, tuple[int, int, float]] = {}
        self.value = 0.0

    def _draw(self, data: Any) -> int:
        return data.draw(st.sampled_from(sorted(self.held)))

    @rule(tokens=st.integers(1, CONTEXT + 100), fill=st.floats(0, 1))
    def take(self, tokens: int, fill: float) -> None:
        lane = self.pool.take(tokens)
        needed = max([tokens, *(most for most, _, _ in self.held.values())])
        if lane is None:
            first = next(i for i in range(len(self.held) + 1) if i not in self.held)
            lanes = max([first, *self.held]) + 1
            assert not self.pool.fits(tokens) or lanes * needed > self.limit
            return
        assert lane not in self.held
        self.value += 1.0
        self.held[lane] = (tokens, int(fill * tokens), self.value)
        write(self.pool, lane, int(fill * tokens), self.value)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free(self, data: Any) -> None:
        lane = self._draw(data)
        self.pool.free(lane)
        del self.held[lane]

    @precondition(lambda self: self.held)
    @rule(data=st.data(), more=st.integers(0, 100))
    def fork(self, data: Any, more: int) -> None:
        source = self._draw(data)
        _, written, value = self.held[source]
        lane = self.pool.fork(source, written, max(1, written + more))
        if lane is not None:
            assert lane not in self.held
            self.held[lane] = (max(1, written + more), written, value)

    @invariant()
    def contents_are_kept(self) -> None:
        for lane, (_, written, value) in self.held.items():
            assert holds(self.pool, lane, written, value)

    @invariant()
    def free_lanes_hold_nothing(self) -> None:
        for lane in set(range(self.pool.lanes)) - self.held.keys():
            assert holds(self.pool, lane, 0, 0.0)

    @invariant()
    def bytes_are_bounded(self) -> None:
        assert self.pool.allocated_bytes <= self.limit * SLOT_BYTES
        assert self.pool.held_bytes == len(self.held) * self.pool.slots * SLOT_BYTES


TestLanes = Lanes.TestCase
TestLanes.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)


@pytest.mark.parametrize(("tokens", "does"), [(1, True), (800, True), (801, False)])
def test_a_sequence_fits_if_an_empty_pool_has_room(tokens: int, does: bool) -> None:
    pool = pool_of(800)
    assert pool.fits(tokens) is does
    assert (pool.take(tokens) is not None) is does


def test_a_sequence_longer_than_the_context_does_not_fit() -> None:
    assert not pool_of(3000, context=100).fits(101)


def test_a_bound_below_one_slot_is_refused() -> None:
    with pytest.raises(ConfigError, match="do not fit"):
        pool_of(0)


def test_a_lane_is_given_back_once() -> None:
    pool = pool_of(800)
    lane = pool.take(10)
    assert lane is not None
    pool.free(lane)
    with pytest.raises(ValueError, match="not taken"):
        pool.free(lane)


def test_no_more_is_copied_than_was_written() -> None:
    pool = pool_of(3000)
    source = pool.take(100)
    assert source is not None
    write(pool, source, 10, 1.0)
    with pytest.raises(ValueError, match="fewer than 11"):
        pool.fork(source, 11, 100)


def test_a_lane_whose_beginning_cannot_be_copied_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = pool_of(3000)
    source = pool.take(100)
    assert source is not None
    write(pool, source, 10, 1.0)
    held = pool.held_bytes

    def fail(source: int, target: int, slots: range) -> None:
        pool.keys[:, target, :, :5] = 1.0
        raise MemoryError("no memory to copy")

    monkeypatch.setattr(pool, "_copy", fail)
    with pytest.raises(MemoryError):
        pool.fork(source, 10, 100)
    assert pool.held_bytes == held
    assert holds(pool, 1, 0, 0.0)


def test_a_number_that_overflowed_does_not_reach_the_next_holder() -> None:
    pool = pool_of(800)
    lane = pool.take(100)
    assert lane is not None
    write(pool, lane, 50, float("nan"))
    pool.free(lane)
    assert not pool.keys.any()
