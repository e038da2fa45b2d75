"""Keys and values of sequences in blocks of 32 slots, in memory that OpenVINO computes on."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from rag_accel.engines.llm.local.model.lane_bookkeeping import LaneBookkeeping
from rag_accel.engines.llm.local.paged.sequences import BLOCK, block_count
from rag_accel.errors import ConfigError

_MEMORY = {torch.float32: np.float32, torch.bfloat16: np.uint16}


class BlockPool(LaneBookkeeping):
    """Keys and values of sequences: two arrays ``[layer, block, kv head, slot, dim]``.

    A lane has the blocks of all tokens it was taken for, anywhere in the pool. Lanes that begin
    alike share whole blocks; one that writes to such a block gets its own before. Address space is
    taken once for all blocks, memory when a block is first written to; it is not given back before
    the pool goes. Blocks are zero when they are taken: no sequence sees what an earlier one wrote.

    Args:
        layers: the layers of the model.
        heads: the key and value heads of a layer.
        dim: the components of a head.
        context: the most tokens of a sequence.
        limit_bytes: the most bytes of keys and values together.
        dtype: of keys and values, ``float32`` or ``bfloat16``.
        frequencies: of the rotation of keys, by which they are moved; None where they cannot be.

    Raises:
        ConfigError: not even one block fits, or the system does not give the memory.
    """

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
        frequencies: torch.Tensor | None = None,
    ) -> None:
        super().__init__(context, frequencies)
        self._dtype = dtype
        #: of keys and values of a block, in all layers
        self.block_bytes = 2 * layers * heads * BLOCK * dim * dtype.itemsize
        self._blocks = limit_bytes // self.block_bytes
        if self._blocks < 1:
            raise ConfigError(
                "not even one block of keys and values fits",
                where="pool bytes",
                found=limit_bytes,
                valid=f"at least {self.block_bytes}, which holds {BLOCK} tokens; better"
                f" {self.block_bytes * block_count(context)}",
            )
        shape = (layers, self._blocks, heads, BLOCK, dim)
        try:
            arrays = [np.zeros(shape, _MEMORY[dtype]) for _ in range(2)]
        except MemoryError as error:
            raise ConfigError(
                "there is no memory for the blocks of keys and values",
                where="pool bytes",
                found=limit_bytes,
                valid="less than what the system gives this process",
                hint="name a smaller pool_bytes",
            ) from error
        #: what is computed on: of each layer ``[block, kv head, slot, dim]``, bfloat16 as uint16
        self.arrays: tuple[NDArray[np.generic], NDArray[np.generic]] = (arrays[0], arrays[1])
        self._keys, self._values = (torch.from_numpy(array).view(dtype) for array in arrays)
        self._free = list(range(self._blocks))  # a heap
        #: the number of lanes that have a block
        self._lanes_of = np.zeros(self._blocks, dtype=np.int32)
        self._tables: dict[int, NDArray[np.int32]] = {}

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    @property
    def allocated_bytes(self) -> int:
        """Return the bytes of all blocks, taken or free."""
        return self._blocks * self.block_bytes

    @property
    def held_bytes(self) -> int:
        return (self._blocks - len(self._free)) * self.block_bytes

    def fits(self, tokens: int) -> bool:
        return tokens <= self.context and block_count(tokens) <= self._blocks

    def table(self, lane: int) -> NDArray[np.int32]:
        """Return the blocks of a lane, in the order of its slots."""
        return self._tables[lane]

    def own(self, lane: int, slots: range) -> None:
        """Give a lane blocks of its own where it is about to write slots that others share.

        Raises:
            ValueError: no block is free.
        """
        table = self._tables[lane]
        touched = range(slots.start // BLOCK, block_count(slots.stop))
        for at in [at for at in touched if self._lanes_of[table[at]] > 1]:
            old = int(table[at])
            (new,) = self._popped(1)
            self._lanes_of[old] -= 1
            for memory in (self._keys, self._values):
                memory[:, new] = memory[:, old]
            table[at] = new

    def _reserve(self, lane: int, tokens: int) -> bool:
        return self._share(lane, tokens, lane, 0) is not None

    def _share(self, lane: int, tokens: int, source: int, shared: int) -> int | None:
        common = self._tables[source][: shared // BLOCK].tolist() if shared else []
        needed = block_count(tokens) - len(common)
        if needed > len(self._free):
            return None
        self._lanes_of[common] += 1
        self._tables[lane] = np.array([*common, *self._popped(needed)], dtype=np.int32)
        return len(common) * BLOCK

    def _popped(self, count: int) -> list[int]:
        """Take free blocks for one lane."""
        if count > len(self._free):
            raise ValueError("no block of keys and values is free")
        blocks = [heapq.heappop(self._free) for _ in range(count)]
        self._lanes_of[blocks] = 1
        return blocks

    def _copy(self, source: int, target: int, slots: range) -> None:
        for (old, new), places, _ in self._spans(slots, source, target):
            for memory in (self._keys, self._values):
                memory[:, new, :, places] = memory[:, old, :, places]

    def _read(self, lane: int, slots: range) -> tuple[torch.Tensor, torch.Tensor]:
        shape = (self._keys.shape[0], self._keys.shape[2], len(slots), self._keys.shape[4])
        keys, values = (torch.empty(shape, dtype=self._dtype) for _ in range(2))
        for (blocks,), places, part in self._spans(slots, lane):
            for memory, found in ((self._keys, keys), (self._values, values)):
                found[:, :, part] = memory[:, blocks, :, places].transpose(1, 2).flatten(2, 3)
        return keys, values

    def _write(
        self,
        lane: int,
        slots: range,
        positions: Sequence[int],
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> None:
        self.own(lane, slots)
        for (blocks,), places, part in self._spans(slots, lane):
            for memory, given in ((self._keys, keys), (self._values, values)):
                piece = given[:, :, part].unflatten(2, (blocks.stop - blocks.start, -1))
                memory[:, blocks, :, places] = piece.transpose(1, 2)

    def _clear(self, lane: int, written: int) -> None:
        table = self._tables.pop(lane)
        self._lanes_of[table] -= 1
        dirty = table[: block_count(written)]
        dirty = dirty[self._lanes_of[dirty] == 0]
        for run in np.split(dirty, np.flatnonzero(np.diff(dirty) != 1) + 1):
            if len(run):
                for memory in (self._keys, self._values):
                    memory[:, run[0] : run[-1] + 1] = 0
        for block in table[self._lanes_of[table] == 0].tolist():
            heapq.heappush(self._free, block)

    def _spans(self, slots: range, *lanes: int) -> Iterator[tuple[list[slice], slice, slice]]:
        """Yield neighbouring blocks, the places in each of them, and which of ``slots`` those are.

        Blocks that are neighbours in the pool come together, which is copied several times faster
        than by their numbers: of each lane as many, all of them whole, or one that is used in part.
        """
        tables = [self._tables[lane].tolist() for lane in lanes]
        at = slots.start
        while at < slots.stop:
            first, place = divmod(at, BLOCK)
            whole = (slots.stop - at) // BLOCK if place == 0 else 0
            count = 1
            while count < whole and all(
                table[first + count] == table[first] + count for table in tables
            ):
                count += 1
            end = at + count * BLOCK if whole else min(slots.stop, (first + 1) * BLOCK)
            places = slice(place, BLOCK if whole else place + end - at)
            blocks = [slice(table[first], table[first] + count) for table in tables]
            yield blocks, places, slice(at - slots.start, end - slots.start)
            at = end
