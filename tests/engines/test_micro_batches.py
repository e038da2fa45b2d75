"""Micro-batches of similar length, and the end of a step's time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_accel.engines.batching import BatchLimits, StepDeadline, micro_batches, of_few_sizes
from rag_accel.errors import ConfigError
from rag_accel.testing import ManualClock

lengths_of_texts = st.lists(st.integers(1, 300), max_size=60)
limits_of_any_size = st.builds(
    BatchLimits, batch=st.integers(1, 800), padding=st.integers(0, 200), step=st.just(1)
)


@given(lengths=lengths_of_texts, limits=limits_of_any_size)
def test_each_text_is_in_one_batch_and_no_bound_is_passed(
    lengths: list[int], limits: BatchLimits
) -> None:
    batches = micro_batches(lengths, limits)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        longest = max(lengths[index] for index in batch)
        padding = sum(longest - lengths[index] for index in batch)
        assert len(batch) == 1 or len(batch) * longest <= limits.batch
        assert padding <= limits.padding


def test_shorter_texts_come_first_and_equal_ones_keep_their_order() -> None:
    limits = BatchLimits(batch=20, padding=0, step=1)
    assert micro_batches([10, 5, 10, 5], limits) == [[1, 3], [0, 2]]


def test_a_text_above_the_bound_runs_alone() -> None:
    assert micro_batches([9, 500], BatchLimits(batch=100, padding=1000, step=1)) == [[0], [1]]


@given(batches=st.lists(st.lists(st.integers(), min_size=1, max_size=200), max_size=4))
def test_few_sizes_keep_each_text_in_its_order(batches: list[list[int]]) -> None:
    found = of_few_sizes(batches)
    assert [text for batch in found for text in batch] == [text for one in batches for text in one]
    assert all(found)


def test_the_sizes_of_many_batches_are_few() -> None:
    batches = [list(range(count)) for count in range(1, 200)]
    assert len({len(batch) for batch in of_few_sizes(batches)}) <= 12


@pytest.mark.parametrize(
    ("batch", "padding", "step"), [(0, 0, 1), (1, -1, 1), (1, 0, 0), (1.5, 0, 1)]
)
def test_bounds_out_of_range_are_refused(batch: int, padding: int, step: int) -> None:
    with pytest.raises(ConfigError):
        BatchLimits(batch=batch, padding=padding, step=step)


def test_the_first_piece_may_start_whatever_the_time() -> None:
    clock = ManualClock()
    deadline = StepDeadline(clock, 0.0)
    assert [deadline.may_start(), deadline.may_start()] == [True, False]


def test_pieces_start_until_the_time_is_over() -> None:
    clock = ManualClock()
    deadline = StepDeadline(clock, 1.0)
    started = []
    for _ in range(4):
        started.append(deadline.may_start())
        clock.advance(0.4)
    assert started == [True, True, True, False]


def test_a_step_without_time_bound_never_ends_early() -> None:
    clock = ManualClock()
    deadline = StepDeadline(clock, None)
    deadline.may_start()
    clock.advance(1e9)
    assert deadline.may_start()
