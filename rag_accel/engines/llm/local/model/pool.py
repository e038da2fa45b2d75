"""Keys and values of running sequences, in one pair of tensors bounded in bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import torch

from rag_accel.errors import ConfigError
from rag_accel.kv.entry import KeyValues, LaneState
from rag_accel.kv.rotation import moved_together

#: The slots of a lane before any sequence needs more.
FIRST_SLOTS = 256
#: What the table of positions holds for a slot that nothing was written to: no row sees it.
NEVER = torch.iinfo(torch.int32).max
POSITION_BYTES = torch.int32.itemsize


class TensorPool:
    """Keys and values of sequences: a pair of tensors ``[layer, lane, kv head, slot, dim]``.

    All lanes have the same number of slots, which doubles up to the context as sequences need it;
    so does the number of lanes. A change of either copies the content to new tensors: for that
    moment the old keys, then the old values, take memory besides the new ones. Unused slots are
    zero, also after a lane was given back: no sequence sees the content of an earlier one.

    Args:
        layers: the layers of the model.
        heads: the key and value heads of a layer.
        dim: the components of a head.
        context: the most tokens of a sequence.
        limit_bytes: the most bytes of keys, values and positions together.
        dtype: of keys and values.
        device: where they are.
        frequencies: of the rotation of keys, by which they are moved; None where they cannot be.

    Raises:
        ConfigError: not even a sequence of one token fits.
    """

    # Ordinary tensors, in whatever mode the caller is: others could not be written outside of it.
    @torch.inference_mode(False)
    def __init__(
        self,
        *,
        layers: int,
        heads: int,
        dim: int,
        context: int,
        limit_bytes: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        frequencies: torch.Tensor | None = None,
    ) -> None:
        self.context = context
        self.frequencies = frequencies
        self._layers, self._heads, self._dim = layers, heads, dim
        self._bytes = 2 * layers * heads * dim * dtype.itemsize + POSITION_BYTES
        self._limit = limit_bytes // self._bytes
        if not self.fits(1):
            raise ConfigError(
                "a sequence's keys and values do not fit",
                where="pool bytes",
                found=limit_bytes,
                valid=f"at least {self._bytes}, better {self._bytes * context}",
            )
        self.keys = torch.zeros(layers, 0, heads, 0, dim, dtype=dtype, device=device)
        self.values = torch.zeros_like(self.keys)
        #: ``[lane, slot]``, int32: the position that a slot holds.
        self.positions = torch.zeros(0, 0, dtype=torch.int32, device=device)
        self._reserved: dict[int, int] = {}
        self._written: dict[int, int] = {}
        self._moved: set[int] = set()

    @property
    def dtype(self) -> torch.dtype:
        """Return that of keys and values."""
        return self.keys.dtype

    @property
    def lanes(self) -> int:
        """Return the number of lanes, taken or free."""
        return self.keys.shape[1]

    @property
    def slots(self) -> int:
        """Return the slots of each lane."""
        return self.keys.shape[3]

    @property
    def allocated_bytes(self) -> int:
        """Return the bytes of all lanes, taken or free."""
        return self.lanes * self.slots * self._bytes

    @property
    def held_bytes(self) -> int:
        """Return the bytes of the lanes that are taken."""
        return len(self._reserved) * self.slots * self._bytes

    def fits(self, tokens: int) -> bool:
        """Tell whether a sequence of so many tokens could be held if no other was."""
        return tokens <= min(self.context, self._limit)

    def take(self, tokens: int) -> int | None:
        """Return a lane for a sequence of at most so many tokens; None while there is no room."""
        if not self.fits(tokens):
            return None
        lane = next(number for number in range(self.lanes + 1) if number not in self._reserved)
        if lane >= self.lanes or tokens > self.slots:
            shape = self._shape_for(lane, tokens)
            if shape is None:
                return None
            self._reshape(*shape)
        self._reserved[lane] = tokens
        self._written[lane] = 0
        return lane

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copy the first slots of a lane to another.

        Raises:
            ValueError: a lane is not taken, or holds or was taken for fewer tokens.
        """
        self._need(target, tokens)
        if tokens > self._written.get(source, 0):
            raise ValueError(f"lane {source} holds fewer than {tokens} tokens")
        for tensor in (self.keys, self.values):
            tensor[:, target, :, :tokens] = tensor[:, source, :, :tokens]
        self.positions[target, :tokens] = self.positions[source, :tokens]
        self._written[target] = max(self._written[target], tokens)
        if source in self._moved:
            self._moved.add(target)

    def read(self, lane: int, slots: range, position: int | None = None) -> KeyValues:
        """Return a copy of the content of slots that were written for positions from this one on.

        Without a position, of slots of a lane whose tokens are all in their places.

        Raises:
            ValueError: the lane is not taken, or holds fewer tokens, or none in their places.
        """
        is_moved = position is None and lane in self._moved
        if slots.stop > self._written.get(lane, 0) or is_moved:
            raise ValueError(f"lane {lane} holds fewer than {slots.stop} tokens in their places")
        taken = slice(slots.start, slots.stop)
        keys, values = self.keys[:, lane, :, taken], self.values[:, lane, :, taken]
        at = slots.start if position is None else position
        return KeyValues(keys.clone(), values.clone(), at)

    def write(self, lane: int, slot: int, state: LaneState) -> None:
        """Put state into slots from this one on, moved to their positions.

        Raises:
            ValueError: the lane was taken for fewer tokens, or keys cannot be moved.
        """
        self.place(lane, slot, [state], [slot])

    def place(
        self, lane: int, slot: int, states: Sequence[LaneState], positions: Sequence[int]
    ) -> None:
        """Put states one behind the other into slots from this one on, each moved to a position.

        Raises:
            ValueError: the lane was taken for fewer tokens, or keys cannot be moved.
        """
        size = sum(map(len, states))
        self._need(lane, slot + size)
        if self.frequencies is None:
            raise ValueError("the keys of this model cannot be moved to other positions")
        device = self.keys.device  # what was read from a file is on the host
        moved = moved_together(states, positions, self.frequencies, device)
        taken = slice(slot, slot + size)
        self.keys[:, lane, :, taken], self.values[:, lane, :, taken] = moved
        places = [range(at, at + len(state)) for at, state in zip(positions, states, strict=True)]
        flat = list(chain.from_iterable(places))
        self.positions[lane, taken] = torch.tensor(flat, dtype=torch.int32)
        self.mark(lane, taken.stop, is_moved=flat != list(range(taken.start, taken.stop)))

    def free(self, lane: int) -> None:
        """Give a lane back.

        Raises:
            ValueError: the lane is not taken.
        """
        self._need(lane, 0)
        written = self._written.pop(lane)
        for tensor in (self.keys, self.values):
            tensor[:, lane, :, :written] = 0
        self.positions[lane, :written] = NEVER
        self._moved.discard(lane)
        del self._reserved[lane]

    def claim(self, lanes: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor) -> None:
        """Note the positions that the rows of a forward write: int64 tensors, one element a row."""
        self.positions[lanes, slots] = positions.int()

    def mark(self, lane: int, slots: int, is_moved: bool) -> None:
        """Say that the slots of a lane are written up to ``slots``, in their places or moved.

        Raises:
            ValueError: the lane is not taken, or was taken for fewer tokens.
        """
        self._need(lane, slots)
        self._written[lane] = max(self._written[lane], slots)
        if is_moved:
            self._moved.add(lane)

    def reach(self, lane: int, position: int) -> int:
        """Return the number of a lane's first slots that can hold positions up to this one."""
        written = self._written[lane]
        return written if lane in self._moved else min(written, position + 1)

    def _need(self, lane: int, slots: int) -> None:
        if slots > self._reserved.get(lane, -1):
            raise ValueError(f"lane {lane} was not taken for {slots} tokens")

    def _shape_for(self, lane: int, tokens: int) -> tuple[int, int] | None:
        """Return the lanes and slots to have: generous ones if possible, else the least."""
        needed = max(tokens, *self._reserved.values(), 1)
        lanes = max(lane, *self._reserved, 0) + 1
        doubled = min(self.context, max(self.slots, _doubled(needed)))
        wider = max(self.lanes, 2 * lanes if lanes > self.lanes else lanes)
        shapes = self._candidates(lanes, wider, needed, doubled)
        return next((shape for shape in shapes if shape[0] * shape[1] <= self._limit), None)

    def _candidates(
        self, lanes: int, wider: int, needed: int, doubled: int
    ) -> Iterator[tuple[int, int]]:
        yield wider, doubled
        yield lanes, doubled
        yield lanes, min(self.context, _doubled(needed))
        yield lanes, needed

    @torch.inference_mode(False)
    def _reshape(self, lanes: int, slots: int) -> None:
        self.keys = self._regrown(self.keys, lanes, slots)
        self.values = self._regrown(self.values, lanes, slots)
        table = self.positions.new_full((lanes, slots), NEVER)
        for lane, written in self._written.items():
            table[lane, :written] = self.positions[lane, :written]
        self.positions = table

    def _regrown(self, old: torch.Tensor, lanes: int, slots: int) -> torch.Tensor:
        new = old.new_zeros(self._layers, lanes, self._heads, slots, self._dim)
        for lane, written in self._written.items():
            new[:, lane, :, :written] = old[:, lane, :, :written]
        return new


def _doubled(tokens: int) -> int:
    """Return the least step of doublings that holds so many tokens."""
    slots = FIRST_SLOTS
    while slots < tokens:
        slots *= 2
    return slots
