"""Rows become sequences of the operator that do not harm what lies behind them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_accel.engines.llm.local.paged.sequences import (
    BLOCK,
    Stretch,
    operator_inputs,
    stretches,
)


@pytest.mark.parametrize(
    ("slots", "written", "expected"),
    [
        (range(40), 40, [range(40)]),  # a prompt's beginning, nothing behind it
        (range(39, 40), 40, [range(39, 40)]),  # a decoded token
        (range(10, 74), 200, [range(10, 64), *(range(at, at + 1) for at in range(64, 74))]),
        (range(32, 64), 200, [range(32, 64)]),  # ends with its block
        ([3, 9, 10], 64, [range(3, 4), range(9, 10), range(10, 11)]),
        ([3, 30, 31, 32, 40, 41], 42, [range(3, 4), range(30, 32), range(32, 33), range(40, 42)]),
        ([], 5, []),
    ],
    ids=["whole", "decoding", "text behind", "one block", "chosen", "question last", "none"],
)
def test_stretches(slots: list[int], written: int, expected: list[range]) -> None:
    assert list(stretches(slots, written)) == expected


@given(st.sets(st.integers(0, 150), min_size=1), st.integers(0, 200))
def test_stretches_cover_the_slots_and_leave_the_rest(chosen: set[int], more: int) -> None:
    slots = sorted(chosen)
    written = max(slots[-1] + 1, more)
    found = list(stretches(slots, written))
    assert [slot for stretch in found for slot in stretch] == slots
    for stretch in found:
        wiped = range(stretch.stop, -(-stretch.stop // BLOCK) * BLOCK)
        assert len(stretch) == 1 or all(slot >= written for slot in wiped)


def test_the_inputs_of_two_lanes() -> None:
    tables = {0: np.array([7, 2, 9], np.int32), 4: np.array([1], np.int32)}
    found = operator_inputs([Stretch(0, 40, 1), Stretch(4, 0, 5, 2), Stretch(0, 64, 3)], tables)
    assert {name: array.tolist() for name, array in found.items()} == {
        "past_lens": [40, 0, 64],
        "subsequence_begins": [0, 1, 6, 9],
        "block_indices": [7, 2, 1, 7, 2, 9],
        "block_indices_begins": [0, 2, 3, 6],
        "max_context_len": 67,
        "score_aggregation_window": [0, 2, 0],
        "row_masks": [],
        "row_mask_begins": [],
    }
    masks = found.pop("row_masks")
    assert masks.dtype == np.uint8
    assert {array.dtype for array in found.values()} == {np.dtype(np.int32)}


def test_masks_stand_one_behind_the_other() -> None:
    tables = {lane: np.array([lane], np.int32) for lane in range(3)}
    mask = np.array([[True, False], [True, True]])
    parts = [Stretch(0, 4, 2, mask=mask), Stretch(1, 0, 3), Stretch(2, 1, 1, mask=mask[:1, :1])]
    found = operator_inputs(parts, tables)
    assert found["row_masks"].tolist() == [1, 0, 1, 1, 1]
    assert found["row_mask_begins"].tolist() == [0, 4, 4, 5]
