"""Keys and values of running sequences, in one pair of tensors bounded in bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from rag_accel.engines.llm.local.model.lane_bookkeeping import LaneBookkeeping
from rag_accel.errors import ConfigError

#: The slots of a lane before any sequence needs more.
FIRST_SLOTS = 256
#: What the table of positions holds for a slot that nothing was written to: no row sees it.
NEVER = torch.iinfo(torch.int32).max
POSITION_BYTES = torch.int32.itemsize


class TensorPool(LaneBookkeeping):
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
        super().__init__(context, frequencies, device)
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

    @property
    def dtype(self) -> torch.dtype:
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
        return len(self._reserved) * self.slots * self._bytes

    def fits(self, tokens: int) -> bool:
        return tokens <= min(self.context, self._limit)

    def claim(self, lanes: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor) -> None:
        """Note the positions that the rows of a forward write: int64 tensors, one element a row."""
        self.positions[lanes, slots] = positions.int()

    def _reserve(self, lane: int, tokens: int) -> bool:
        if lane < self.lanes and tokens <= self.slots:
            return True
        shape = self._shape_for(lane, tokens)
        if shape is not None:
            self._reshape(*shape)
        return shape is not None

    def _copy(self, source: int, target: int, slots: range) -> None:
        taken = slice(slots.start, slots.stop)
        for tensor in (self.keys, self.values):
            tensor[:, target, :, taken] = tensor[:, source, :, taken]
        self.positions[target, taken] = self.positions[source, taken]

    def _read(self, lane: int, slots: range) -> tuple[torch.Tensor, torch.Tensor]:
        taken = slice(slots.start, slots.stop)
        return self.keys[:, lane, :, taken].clone(), self.values[:, lane, :, taken].clone()

    def _write(
        self,
        lane: int,
        slots: range,
        positions: Sequence[int],
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> None:
        taken = slice(slots.start, slots.stop)
        self.keys[:, lane, :, taken] = keys
        self.values[:, lane, :, taken] = values
        self.positions[lane, taken] = torch.tensor(positions, dtype=torch.int32)

    def _clear(self, lane: int, written: int) -> None:
        for tensor in (self.keys, self.values):
            tensor[:, lane, :, :written] = 0
        self.positions[lane, :written] = NEVER

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
