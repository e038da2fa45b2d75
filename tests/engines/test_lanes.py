"""Pieces that run side by side end as they would one by one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_accel.engines.lanes import cut_for_lanes, side_by_side
from rag_accel.engines.micro_batches import BatchLimits
from rag_accel.engines.torch_threads import thread_count

PATIENCE_S = 20.0


def square(number: int) -> int:
    if number % 5 == 4:
        raise LookupError(str(number))
    return number * number


@given(count=st.integers(0, 40), lanes=st.integers(1, 4))
def test_each_piece_ends_in_its_own_place_with_its_own_error(count: int, lanes: int) -> None:
    ends = side_by_side([partial(square, number) for number in range(count)], lanes)
    assert len(ends) == count
    for number, end in enumerate(ends):
        if number % 5 == 4:
            with pytest.raises(LookupError, match=str(number)):
                end.result(0)
        else:
            assert end.result(0) == number * number


def test_as_many_pieces_as_lanes_run_at_once() -> None:
    together = threading.Barrier(3, timeout=PATIENCE_S)
    ends = side_by_side([together.wait] * 3, 3)
    assert sorted(end.result(0) for end in ends) == [0, 1, 2]


def test_one_lane_is_the_calling_thread() -> None:
    (end,) = side_by_side([threading.get_ident], 1)
    assert end.result(0) == threading.get_ident()


def test_lanes_leave_no_thread_behind() -> None:
    before = threading.active_count()
    side_by_side([lambda: None] * 8, 4)
    assert threading.active_count() == before


@pytest.mark.parametrize(("lanes", "inside"), [(1, 2), (2, 1)])
def test_several_lanes_compute_on_one_torch_thread_each(lanes: int, inside: int) -> None:
    torch = pytest.importorskip("torch")
    asked: list[Callable[[], int]] = [torch.get_num_threads] * 6
    with thread_count(2):
        assert {end.result(0) for end in side_by_side(asked, lanes)} == {inside}
        assert torch.get_num_threads() == 2


LIMITS = BatchLimits(batch=8, padding=8, step=1000)


@pytest.mark.parametrize(("threads", "lanes"), [(0, 1), (1, 1), (2, 2), (5, 5), (6, 1)])
def test_each_lane_has_a_few_pieces_or_there_is_one(threads: int, lanes: int) -> None:
    assert cut_for_lanes([4] * 15, LIMITS, threads, lambda: True)[1] == lanes


def test_what_must_not_run_twice_at_a_time_has_one_lane() -> None:
    assert cut_for_lanes([4] * 15, LIMITS, 2, lambda: False)[1] == 1


@given(lengths=st.lists(st.integers(1, 8)), threads=st.integers(0, 4))
def test_each_text_is_in_one_piece_and_the_longest_come_first_in_lanes(
    lengths: list[int], threads: int
) -> None:
    batches, lanes = cut_for_lanes(lengths, LIMITS, threads, lambda: True)
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    longest = [max(lengths[row] for row in batch) for batch in batches]
    assert longest == sorted(longest, reverse=lanes > 1)
