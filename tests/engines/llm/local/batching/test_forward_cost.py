"""How many rows a forward may have, by the forwards before it."""

from __future__ import annotations

import random

import pytest

from rag_accel.engines.llm.local.batching.forward_cost import FEW_ROWS, RECENT, ForwardCost
from rag_accel.engines.llm.local.batching.schedule import LEAST_CHUNK


@pytest.fixture
def even_forwards() -> None:
    """Leave times to the forwards of the tests."""


@pytest.fixture
def pace() -> ForwardCost:
    return ForwardCost(most_rows=512, most_s=0.25)


def test_before_anything_is_known_a_forward_has_all_it_may(pace: ForwardCost) -> None:
    assert pace.rows(decodes=True) == 512


def test_rows_fill_what_a_forward_leaves_beside_its_least_time(pace: ForwardCost) -> None:
    pace.ran(8, 0.05)
    pace.ran(200, 0.25)
    assert pace.rows(decodes=True) == pytest.approx(200, abs=1)


@pytest.mark.parametrize("rows", [LEAST_CHUNK, 200, 512])
def test_forwards_of_all_sizes_say_the_same(pace: ForwardCost, rows: int) -> None:
    pace.ran(1, 0.05)
    for _ in range(3):
        pace.ran(rows, 0.05 + 0.001 * rows)
    assert pace.rows(decodes=True) == pytest.approx(200, abs=1)


@pytest.mark.parametrize("least_s", [0.1, 0.3])
def test_a_piece_is_never_smaller_than_the_least(pace: ForwardCost, least_s: float) -> None:
    pace.ran(1, least_s)
    pace.ran(200, 20.0)
    assert pace.rows(decodes=True) == LEAST_CHUNK


def test_small_forwards_say_nothing_of_a_row(pace: ForwardCost) -> None:
    pace.ran(200, 0.25)
    for _ in range(2 * RECENT):
        pace.ran(FEW_ROWS, 9.0)
        pace.ran(LEAST_CHUNK - 1, 9.0)
    assert pace.rows(decodes=True) == 200


def test_a_forward_may_be_smaller_than_the_least_piece_by_its_options() -> None:
    pace = ForwardCost(most_rows=64, most_s=0.25)
    pace.ran(64, 64.0)
    assert pace.seconds(2) == 2.0
    assert pace.rows(decodes=True) == 64


def test_the_lower_quartile_of_the_last_forwards_counts(pace: ForwardCost) -> None:
    for seconds in (0.4, 0.2, 0.9, 0.8, 0.25, 0.7, 0.6, 0.5):
        pace.ran(200, seconds)
    assert pace.rows(decodes=True) == 200


def test_other_work_beside_two_of_three_forwards_changes_little(
    pace: ForwardCost,
) -> None:
    rng = random.Random(0)
    for at in range(300):
        pace.ran(1, 0.05 * (1 if at % 3 == 0 else rng.uniform(1, 5)))
        pace.ran(200, 0.25 * (1 if at % 3 == 0 else rng.uniform(1, 5)))
        assert 190 <= pace.rows(decodes=True) <= 210


def test_a_machine_that_became_slower_is_noticed(pace: ForwardCost) -> None:
    for _ in range(RECENT):
        pace.ran(200, 0.125)
    assert pace.rows(decodes=True) == 400
    for _ in range(RECENT):
        pace.ran(200, 0.25)
    assert pace.rows(decodes=True) == 200


def test_a_forward_that_took_less_than_the_least_is_left_out(pace: ForwardCost) -> None:
    pace.ran(1, 0.05)
    pace.ran(200, 0.25)
    pace.ran(200, 0.04)
    assert pace.rows(decodes=True) == pytest.approx(200, abs=1)


def test_where_nothing_decodes_a_forward_may_take_four_times_as_long() -> None:
    pace = ForwardCost(most_rows=1000, most_s=0.25)
    pace.ran(200, 0.25)
    assert pace.rows(decodes=True) == 200
    assert pace.rows(decodes=False) == 800


@pytest.mark.parametrize(
    ("seconds", "alone", "others", "decoding"),
    [
        (0.01, 2048, 512, 512),
        (0.1, 2000, 512, 500),
        (0.25, 800, 512, 200),
        (0.5, 400, 400, LEAST_CHUNK),
        (9.0, LEAST_CHUNK, LEAST_CHUNK, LEAST_CHUNK),
    ],
    ids=["bound in rows", "bound in time", "float32", "slow", "floor"],
)
def test_a_prompt_alone_is_cut_by_time_up_to_four_times_the_rows(
    pace: ForwardCost, seconds: float, alone: int, others: int, decoding: int
) -> None:
    pace.ran(200, seconds)
    assert pace.rows(decodes=False, is_alone=True) == alone
    assert pace.rows(decodes=False) == others
    assert pace.rows(decodes=True) == decoding
    assert pace.rows(decodes=True, is_alone=True) == decoding


def test_a_prompt_alone_has_no_more_rows_before_a_forward_was_measured(pace: ForwardCost) -> None:
    assert pace.rows(decodes=False, is_alone=True) == 512


def test_forwards_that_were_cut_never_make_the_next_ones_smaller(pace: ForwardCost) -> None:
    """Each forward has the rows that those before it allow, at a fifth of a second for 128 rows."""
    pace.ran(1, 0.06)
    sizes: list[int] = []
    for _ in range(50):
        sizes.append(pace.rows(decodes=True))
        pace.ran(sizes[-1], 0.06 + 0.0015 * sizes[-1])
    assert sizes[0] == 512
    assert min(sizes[1:]) == LEAST_CHUNK
    assert len(set(sizes[1:])) == 1


def test_the_time_of_a_prompt_is_told_by_smaller_forwards_until_there_is_a_large_one(
    pace: ForwardCost,
) -> None:
    assert pace.seconds(50) == 50.0
    pace.ran(1, 0.05)
    pace.ran(50, 0.15)
    assert pace.seconds(50) == pytest.approx(0.15)
    assert pace.rows(decodes=True) == 512
    pace.ran(200, 0.25)
    assert pace.seconds(50) == pytest.approx(0.1)
