"""The rows of one forward: tokens of sequences, and the slots that each row may see.

Between the schedule, which decides, the runner, which computes, and the sampler, which chooses
tokens, nothing but these values passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rag_accel.kv.dependency.visibility import seen_slots
from rag_accel.kv.entry import LaneState


@dataclass(frozen=True, slots=True)
class Causal:
    """A row sees the slots of its lane that hold positions up to its own.

    Layers with a sliding window narrow this further by themselves.
    """


@dataclass(frozen=True, slots=True)
class Subtrees:
    """A row sees what its lane held before, and those of the same rows whose subtree it is part of.

    The rows are the tokens of a tree in pre-order, in neighbouring slots (DepCache section 3.1):
    the tokens that depend on one are a range that begins with it.

    Args:
        ends: of each row, the slot behind the last one that sees it.
        open_from: the slot of the first row that sees all of those before it; None for none.
    """

    ends: Sequence[int]
    open_from: int | None = None

    def mask(self, slots: range) -> NDArray[np.bool_]:
        """Return ``[row, row]``: whether a row sees another one of the same.

        Args:
            slots: of all rows.
        """
        at = np.arange(slots.start, slots.stop, dtype=np.int32)
        seen = seen_slots(at, np.asarray(self.ends, dtype=np.int32))
        if self.open_from is not None:
            rows = at[:, None]
            seen |= (rows >= self.open_from) & (rows >= at)
        return seen


Visibility = Causal | Subtrees
CAUSAL = Causal()


class Probe:
    """The attention of rows to each slot of their lane, in one layer.

    Args:
        layer: the layer.
        rows: rows of the sequence in this forward, by their index.
    """

    __slots__ = ("layer", "rows", "scores")

    def __init__(self, layer: int, rows: Sequence[int]) -> None:
        self.layer = layer
        self.rows = rows
        #: ``[slot]``, float32: probabilities, meaned over heads and summed over rows
        self.scores: Any = None


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """Rows of one sequence in one forward, ascending by slot.

    Args:
        lane: the sequence's place in the pool.
        ids: the tokens, one a row.
        slots: where in the lane the keys and values of each row are written.
        positions: what each row's rotation is computed for; the same as its slot, unless attention
            state was moved.
        asked: the rows, by their index here, whose logits are wanted.
        visible: what each row may see; ``Subtrees`` only of neighbouring slots, behind which the
            lane holds nothing yet.
        probe: receives the rows' attention, once the forward is computed.
    """

    lane: int
    ids: Sequence[int]
    slots: Sequence[int]
    positions: Sequence[int]
    asked: Sequence[int] = ()
    visible: Visibility = CAUSAL
    probe: Probe | None = None

    def __len__(self) -> int:
        return len(self.ids)


class LanePool(Protocol):
    """Keys and values of sequences: ``[layer, lane, kv head, slot, dim]``, bounded in bytes."""

    @property
    def held_bytes(self) -> int:
        """Return the bytes of the lanes that are taken."""
        ...

    @property
    def dtype(self) -> Any:
        """Return the dtype of keys and values, of torch."""
        ...

    @property
    def on_cpu(self) -> bool:
        """Tell whether keys and values are in the memory of the CPU, which computes them then."""
        ...

    def fits(self, tokens: int) -> bool:
        """Tell whether a sequence of so many tokens could be held if no other was."""
        ...

    def take(self, tokens: int) -> int | None:
        """Return a lane for a sequence of at most so many tokens; None while there is no room."""
        ...

    def fork(self, source: int, shared: int, tokens: int) -> int | None:
        """Return a lane for at most so many tokens that begins as another one does.

        None while there is no room.

        Args:
            source: the other lane.
            shared: slots that both begin with, which either may write to later nonetheless.
            tokens: of the new lane.
        """
        ...

    def read(self, lane: int, slots: range, position: int | None = None) -> LaneState:
        """Return a copy of the content of slots that were written for positions from this one on.

        Without a position, of slots of a lane whose tokens are all in their places.
        """
        ...

    def write(self, lane: int, slot: int, state: LaneState) -> None:
        """Put state into slots from this one on, moved to their positions."""
        ...

    def place(
        self, lane: int, slot: int, states: Sequence[LaneState], positions: Sequence[int]
    ) -> None:
        """Put states one behind the other into slots from this one on, each moved to a position."""
        ...

    def free(self, lane: int) -> None:
        """Give a lane back."""
        ...


class Runner(Protocol):
    """A model that computes rows."""

    @property
    def pool(self) -> LanePool:
        """Return the sequences' keys and values."""
        ...

    @property
    def layers(self) -> int:
        """Return the number of layers."""
        ...

    @property
    def vocabulary(self) -> int:
        """Return the number of logits of a row."""
        ...

    @property
    def context(self) -> int:
        """Return the most tokens of a sequence, prompt and completion together."""
        ...

    def identity(self) -> str:
        """Return the identity of this model's states; may take seconds."""
        ...

    def run(self, rows: Sequence[SequenceRows]) -> Any:
        """Compute the rows and write their keys and values to the pool.

        Return the logits of the asked rows, in order: a tensor ``[asked, vocabulary]``, float32.
        """
        ...
