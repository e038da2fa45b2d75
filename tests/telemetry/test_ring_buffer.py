"""The ring buffer keeps exactly the newest items, from any number of threads."""

from __future__ import annotations

import threading
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rag_accel.errors import ConfigError
from rag_accel.telemetry.tracer import RingBuffer


class RingBufferAgainstDeque(RuleBasedStateMachine):
    """Compare the ring buffer with a bounded deque and a count after every operation."""

    @initialize(capacity=st.integers(1, 8))
    def start(self, capacity: int) -> None:
        self.capacity = capacity
        self.ring: RingBuffer[int] = RingBuffer(capacity)
        self.model: deque[int] = deque(maxlen=capacity)
        self.appended = 0

    @rule(item=st.integers())
    def append(self, item: int) -> None:
        self.ring.append(item)
        self.model.append(item)
        self.appended += 1

    @invariant()
    def holds_the_newest_in_order(self) -> None:
        assert self.ring.snapshot() == tuple(self.model)
        assert len(self.ring) == len(self.model)

    @invariant()
    def counts_what_was_overwritten(self) -> None:
        assert self.ring.total == self.appended
        assert self.ring.dropped == max(0, self.appended - self.capacity)


TestRingBufferAgainstDeque = RingBufferAgainstDeque.TestCase


@given(capacity=st.integers(1, 50), items=st.lists(st.none() | st.integers()))
def test_any_item_may_be_held_even_none(capacity: int, items: list[int | None]) -> None:
    ring: RingBuffer[int | None] = RingBuffer(capacity)
    for item in items:
        ring.append(item)
    assert ring.snapshot() == tuple(items[-capacity:])


def test_a_snapshot_removes_nothing_and_does_not_change_later() -> None:
    ring: RingBuffer[str] = RingBuffer(2)
    ring.append("a")
    before = ring.snapshot()
    ring.append("b")
    assert before == ("a",)
    assert ring.snapshot() == ("a", "b")


def test_items_of_many_threads_are_all_counted_and_kept_in_each_threads_order() -> None:
    ring: RingBuffer[tuple[int, int]] = RingBuffer(100_000)
    start = threading.Barrier(4)

    def write(writer: int) -> None:
        start.wait()
        for index in range(5_000):
            ring.append((writer, index))

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    held = ring.snapshot()
    assert ring.total == len(held) == 20_000
    for writer in range(4):
        assert [index for who, index in held if who == writer] == list(range(5_000))


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_buffer_for_nothing_is_refused(capacity: int) -> None:
    with pytest.raises(ConfigError, match="at least one item"):
        RingBuffer(capacity)
