"""The sequences of one call of the paged attention operator, made of the rows of a forward.

The operator attends by sequences: neighbouring new rows behind a past, each of which sees all slots
before its own. A sequence of several rows is computed by matrix products; one of a single row reads
its past alone, and is dearer a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Slots of a block: what the operator is compiled for on processors.
BLOCK = 32
#: Inputs that operators before 2026 do not have: masks of new rows, and where each begins.
MASK_INPUTS = ("row_masks", "row_mask_begins")


@dataclass(frozen=True, slots=True)
class Stretch:
    """Neighbouring rows of one lane that are one sequence of the operator.

    Args:
        lane: the lane.
        start: the slot of the first row, which is the length of the past.
        rows: the number of rows.
        probed: how many of the last rows have their attention recorded.
        mask: ``[row, row]``: which of the rows each sees; None for those up to its own.
    """

    lane: int
    start: int
    rows: int
    probed: int = 0
    mask: NDArray[np.bool_] | None = None

    @property
    def end(self) -> int:
        """Return the slot behind the last row."""
        return self.start + self.rows


def stretches(slots: Sequence[int], written: int) -> Iterator[range]:
    """Yield ascending slots in stretches that do not harm what lies behind them.

    The operator zeroes the values between the end of several rows and the end of their block. Where
    that would meet written slots, several rows end with a block, and the rest is taken one by one.

    Args:
        slots: of the rows of one lane, ascending.
        written: how many first slots of the lane hold anything, or will after this forward.
    """
    for run in _runs(slots):
        if run.stop >= written:
            yield run
            continue
        border = max(run.start, run.stop // BLOCK * BLOCK)
        if border > run.start:
            yield range(run.start, border)
        for slot in range(border, run.stop):
            yield range(slot, slot + 1)


def _runs(slots: Sequence[int]) -> Iterator[range]:
    if isinstance(slots, range) and slots.step == 1:
        if slots:
            yield slots
        return
    start = 0
    for at in range(1, len(slots) + 1):
        if at == len(slots) or slots[at] != slots[at - 1] + 1:
            yield range(slots[start], slots[at - 1] + 1)
            start = at


def block_count(tokens: int) -> int:
    """Return the number of blocks that hold so many tokens."""
    return -(-tokens // BLOCK)


def operator_inputs(
    parts: Sequence[Stretch], tables: Mapping[int, NDArray[np.int32]]
) -> dict[str, NDArray[Any]]:
    """Return the operator's inputs by name, int32, and masks of rows, uint8.

    Args:
        parts: the sequences, in the order of their rows.
        tables: the blocks of each lane.
    """
    blocks = [tables[part.lane][: block_count(part.end)] for part in parts]
    return {
        "past_lens": _array([part.start for part in parts]),
        "subsequence_begins": _array([0, *accumulate(part.rows for part in parts)]),
        "block_indices": np.concatenate(blocks),
        "block_indices_begins": _array([0, *accumulate(map(len, blocks))]),
        "max_context_len": np.array(max(part.end for part in parts), np.int32),
        "score_aggregation_window": _array([part.probed for part in parts]),
        **_row_masks(parts),
    }


def _row_masks(parts: Sequence[Stretch]) -> dict[str, NDArray[Any]]:
    """Return the masks one behind the other; without any, both inputs are empty."""
    masks = [part.mask for part in parts if part.mask is not None]
    if not masks:
        return dict(zip(MASK_INPUTS, (np.zeros(0, np.uint8), _array([])), strict=True))
    sizes = (0 if part.mask is None else part.mask.size for part in parts)
    flat = np.concatenate([mask.ravel() for mask in masks])
    begins = _array([0, *accumulate(sizes)])
    return dict(zip(MASK_INPUTS, (flat.view(np.uint8), begins), strict=True))


def _array(values: Sequence[int]) -> NDArray[np.int32]:
    return np.array(values, dtype=np.int32)
