"""Attention over rows of several sequences in one forward, with keys and values in a pool.

A model calls the registered function in each layer with the queries, keys and values of all rows,
already rotated. The function writes keys and values to the pool and lets each row look at its own
lane. Rows of decoding sequences are one padded product over neighbouring lanes; rows of a prompt
are taken in blocks, each over the part of its lane that it can see. Where all rows of a block see
what lies before them, they need no mask (``split_attention``).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from rag_accel.engines.llm.local.batching.rows import SequenceRows
from rag_accel.engines.llm.local.model.pool import TensorPool
from rag_accel.engines.llm.local.model.split_attention import can_split, split_attention

#: The name of the function among those of transformers.
NAME = "rag_accel_rows"
#: Rows of a prompt that look at their lane together: at least so many, and more while the
#: positions of all lie this close, since each row of a block is multiplied with all that its last
#: row sees. Blocks this size are enough for two threads to share out evenly.
LEAST_BLOCK = 32
BLOCK_SPAN = 256
#: Slots before a full block from which on two products take less time than one with a mask.
LEAST_BEFORE = 1024
#: A product of several lanes may compute so many times the scores that are needed.
MOST_PADDING = 2.0


def register() -> None:
    """Make the function known to transformers under its name; again does nothing new."""
    transformers = importlib.import_module("transformers")
    transformers.AttentionInterface.register(NAME, attention)
    transformers.AttentionMaskInterface.register(NAME, _no_mask)


def _no_mask(*_: Any, **__: Any) -> None:
    """Return no mask: which rows see which slots depends on the pool."""


def attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    rag_accel_rows: Packed | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Return the heads' outputs ``[1, row, head, dim]`` of packed rows.

    Args:
        module: a layer's attention; ``layer_idx`` says which.
        query: ``[1, head, row, dim]``, rotated.
        key: ``[1, kv head, row, dim]``, rotated.
        value: ``[1, kv head, row, dim]``.
        attention_mask: None.
        scaling: the factor of the scores.
        sliding_window: how many positions up to its own a row sees; None for all.
        rag_accel_rows: where the rows belong.

    Raises:
        ValueError: it is not said where the rows belong, or there is a mask.
    """
    if rag_accel_rows is None or attention_mask is not None:
        raise ValueError("packed rows come through their runner, without a mask")
    packed = rag_accel_rows
    packed.write(module.layer_idx, key[0], value[0])
    return packed.attend(module.layer_idx, query[0], scaling, sliding_window)[None], None


@dataclass(frozen=True, slots=True)
class Block:
    """Rows that look at neighbouring lanes in one product, as many in each lane.

    Args:
        lanes: the first lane and the one behind the last.
        reach: how many slots of the lanes are looked at.
        rows: which rows of the forward look, lane by lane; in a lane that is only passed over, any.
        kept: the results that are used, by their place in ``rows``; None for all.
    """

    lanes: tuple[int, int]
    reach: int
    rows: Sequence[int]
    kept: Sequence[int] | None = None


def prompt_blocks(rows: SequenceRows, start: int, pool: TensorPool) -> Iterator[Block]:
    """Yield blocks of the rows of one sequence, which begin at row ``start`` of the forward."""
    first = 0
    while first < len(rows):
        behind = _block_end(rows.positions, first)
        reach = pool.reach(rows.lane, max(rows.positions[first:behind]))
        yield Block((rows.lane, rows.lane + 1), reach, range(start + first, start + behind))
        first = behind


def _block_end(positions: Sequence[int], first: int) -> int:
    near = positions[first] + BLOCK_SPAN
    behind = min(first + LEAST_BLOCK, len(positions))
    while behind < len(positions) and positions[behind] < near:
        behind += 1
    return behind


def decoding_blocks(rows: Sequence[tuple[int, int, int]]) -> Iterator[Block]:
    """Yield blocks of sequences with one row each.

    Neighbouring lanes are taken together, passing over others between them, as long as padding
    to the longest costs less than ``MOST_PADDING``.

    Args:
        rows: of each sequence its lane, how many slots it looks at, and its row in the forward.
    """
    group: list[tuple[int, int, int]] = []
    for row in sorted(rows):
        if group and _padding([*group, row]) > MOST_PADDING:
            yield _decoding_block(group)
            group = []
        group.append(row)
    if group:
        yield _decoding_block(group)


def _padding(group: Sequence[tuple[int, int, int]]) -> float:
    lanes = group[-1][0] - group[0][0] + 1
    return lanes * max(reach for _, reach, _ in group) / sum(reach for _, reach, _ in group)


def _decoding_block(group: Sequence[tuple[int, int, int]]) -> Block:
    first, last = group[0][0], group[-1][0]
    row_of = {lane: row for lane, _, row in group}
    lanes = range(first, last + 1)
    rows = [row_of.get(lane, group[0][2]) for lane in lanes]
    kept = None if len(group) == len(lanes) else [lane - first for lane in row_of]
    return Block((first, last + 1), max(reach for _, reach, _ in group), rows, kept)


class Packed:
    """The rows of one forward, placed: their slots in the pool, and the slots each may see.

    Args:
        pool: holds the sequences; told here what will be written.
        rows: of each sequence, at most one item.

    Raises:
        ValueError: two items are of one lane, or slots are outside what a lane was taken for.
    """

    def __init__(self, pool: TensorPool, rows: Sequence[SequenceRows]) -> None:
        if len({row.lane for row in rows}) < len(rows):
            raise ValueError("the rows of a sequence are one item")
        self._pool = pool
        for row in rows:
            pool.mark(row.lane, row.slots[-1] + 1, list(row.slots) != list(row.positions))
        device = pool.keys.device
        self.positions = _indices((at for row in rows for at in row.positions), device)
        self._slots = _indices((slot for row in rows for slot in row.slots), device)
        self._lanes = _indices((row.lane for row in rows for _ in row.ids), device)
        pool.claim(self._lanes, self._slots, self.positions)
        self._parts = [_Part(block, pool, self.positions) for block in _blocks(rows, pool)]
        self._probed = [
            (item.probe, item.lane, [start + row for row in item.probe.rows])
            for item, start in placed(rows)
            if item.probe is not None
        ]

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write the rows of a layer, ``[kv head, row, dim]``, to their slots."""
        self._pool.keys[layer][self._lanes, :, self._slots] = keys.transpose(0, 1)
        self._pool.values[layer][self._lanes, :, self._slots] = values.transpose(0, 1)

    def attend(
        self, layer: int, queries: torch.Tensor, scaling: float | None, window: int | None
    ) -> torch.Tensor:
        """Return outputs ``[row, head, dim]`` of queries ``[head, row, dim]`` of a layer."""
        by_row = queries.transpose(0, 1)
        out = torch.empty_like(by_row, memory_format=torch.contiguous_format)
        keys, values = self._pool.keys[layer], self._pool.values[layer]
        for part in self._parts:
            out.index_copy_(0, part.targets, part.attend(by_row, keys, values, scaling, window))
        for probe, lane, rows in self._probed:
            if probe.layer == layer:
                probe.scores = self._looks(by_row[rows], rows, keys[lane], lane, scaling, window)
        return out

    def _looks(
        self,
        queries: torch.Tensor,
        rows: Sequence[int],
        keys: torch.Tensor,
        lane: int,
        scaling: float | None,
        window: int | None,
    ) -> torch.Tensor:
        """Return ``[slot]``: the probabilities of rows ``[row, head, dim]``, meaned and summed."""
        own = self.positions[rows]
        reach = self._pool.reach(lane, int(own.max()))
        held = self._pool.positions[lane, :reach]
        unseen = held > own[:, None]
        if window is not None:
            unseen |= held <= own[:, None] - window
        grouped = queries.unflatten(1, (keys.shape[0], -1)).permute(1, 2, 0, 3).float()
        products = grouped @ keys[:, None, :reach].float().transpose(-1, -2)
        products *= queries.shape[-1] ** -0.5 if scaling is None else scaling
        looks = products.masked_fill_(unseen, -torch.inf).softmax(dim=-1)
        return looks.mean(dim=(0, 1)).sum(dim=0)


def _indices(values: Iterator[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.int64, device=device)


def placed(rows: Sequence[SequenceRows]) -> list[tuple[SequenceRows, int]]:
    """Return items with the place of their first row in the forward."""
    starts = [0, *accumulate(map(len, rows))]
    return list(zip(rows, starts, strict=False))


def _blocks(rows: Sequence[SequenceRows], pool: TensorPool) -> list[Block]:
    decoding = [
        (item.lane, pool.reach(item.lane, item.positions[0]), start)
        for item, start in placed(rows)
        if len(item) == 1
    ]
    prompts = [prompt_blocks(item, start, pool) for item, start in placed(rows) if len(item) > 1]
    return [*decoding_blocks(decoding), *(block for blocks in prompts for block in blocks)]


class _Part:
    """A block with its tensors; what its rows see is looked up once for all layers."""

    def __init__(self, block: Block, pool: TensorPool, positions: torch.Tensor) -> None:
        first, behind = block.lanes
        self._lanes = slice(first, behind)
        self._reach = block.reach
        device = positions.device
        self._rows = _indices(iter(block.rows), device)
        self._kept = None if block.kept is None else _indices(iter(block.kept), device)
        self.targets = self._rows if self._kept is None else self._rows[self._kept]
        self._own = positions[self._rows].view(behind - first, 1, -1, 1)
        self._held = pool.positions[self._lanes, None, None, : block.reach]
        self._is_decoding = self._own.shape[2] == 1
        self._masks: dict[int | None, torch.Tensor] = {}
        self._least_window = self._window_without_mask(pool.dtype)

    def attend(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scaling: float | None,
        window: int | None,
    ) -> torch.Tensor:
        """Return outputs ``[row, head, dim]`` of the rows that are kept."""
        if self._least_window is not None and (window is None or window >= self._least_window):
            return self._attend_split(queries, keys, values, scaling)
        kv_heads = keys.shape[1]
        seen = [tensor[self._lanes, :, : self._reach] for tensor in (keys, values)]
        grouped = queries.index_select(0, self._rows).unflatten(1, (kv_heads, -1))
        if not self._is_decoding:
            # The query heads that share keys are the batch, so that one mask serves all of them.
            grouped = grouped.permute(2, 1, 0, 3)
            seen = [tensor.expand(len(grouped), -1, -1, -1) for tensor in seen]
        mask = self._mask(window, queries.dtype)
        out = torch.nn.functional.scaled_dot_product_attention(
            grouped, *seen, attn_mask=mask, scale=scaling
        )
        by_row = out if self._is_decoding else out.permute(2, 1, 0, 3)
        merged = by_row.flatten(1, 2)
        return merged if self._kept is None else merged.index_select(0, self._kept)

    def _attend_split(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float | None
    ) -> torch.Tensor:
        seen_keys, seen_values = (
            tensor[self._lanes.start, :, : self._reach] for tensor in (keys, values)
        )
        grouped = queries.index_select(0, self._rows).unflatten(1, (keys.shape[1], -1))
        out = split_attention(grouped.permute(1, 2, 0, 3), seen_keys, seen_values, scaling)
        return out.permute(2, 0, 1, 3).flatten(1, 2)

    def _window_without_mask(self, dtype: torch.dtype) -> int | None:
        """Return from which window on the rows need no mask but the causal one of their own slots.

        None where they need one: what lies before them has gaps or is not seen by all of them, or
        their own slots are not the last.
        """
        own, held = self._own.flatten(), self._held.flatten()
        before = self._reach - len(own)
        if self._is_decoding or before < LEAST_BEFORE or not can_split(own.device, dtype):
            return None
        if not torch.equal(held[before:].long(), own) or not bool((own.diff() > 0).all()):
            return None
        first, last = int(own[0]), int(own[-1])
        if int(held[:before].max()) >= first:
            return None
        return last - int(held.min()) + 1

    def _mask(self, window: int | None, dtype: torch.dtype) -> torch.Tensor:
        """Return the additive mask, 0 or minus infinity: ``[lane, 1, row, slot]``."""
        if window not in self._masks:
            unseen = self._held > self._own
            if window is not None:
                unseen |= self._held <= self._own - window
            mask = torch.zeros(unseen.shape, dtype=dtype, device=unseen.device)
            self._masks[window] = mask.masked_fill_(unseen, -torch.inf)
        return self._masks[window]
