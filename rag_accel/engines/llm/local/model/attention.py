"""Attention over rows of several sequences in one forward, with keys and values in a pool.

A model calls the registered function in each layer with the queries, keys and values of all rows,
already rotated. The function writes keys and values to the pool and lets each row look at its own
lane. Rows of decoding sequences are one padded product over neighbouring lanes; rows of a prompt
are taken in blocks, each over the part of its lane that it can see. Where all rows of a block see
what lies before them, they need no mask (``split_attention``, ``cuda_attention``).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rag_accel.engines.llm.local.batching.rows import SequenceRows, Subtrees
from rag_accel.engines.llm.local.model.blocks import (
    Block,
    placed,
    prompt_blocks,
    single_row_blocks,
    whole_block,
)
from rag_accel.engines.llm.local.model.cuda_attention import (
    aligned_zeros,
    can_leave_out_masks,
    causal_attention,
    masked_attention,
)
from rag_accel.engines.llm.local.model.pool import TensorPool
from rag_accel.engines.llm.local.model.split_attention import can_split, split_attention

#: The name of the function among those of transformers.
NAME = "rag_accel_rows"
#: Slots before a block, and rows of it, from which on two products take less time than one with a
#: mask: of nine heads with three of keys, 64 rows take 0.95 times as long behind 1,024 slots and as
#: long behind 512, and 32 rows gain nothing behind 4,096. Both dtypes are alike.
LEAST_BEFORE = 1024
LEAST_ROWS = 64


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
        self._parts = list(_parts(rows, pool, self.positions))
        self._written = _written(rows, self._lanes, self._slots)
        self._probed = [
            (item.probe, item.lane, [start + row for row in item.probe.rows])
            for item, start in placed(rows)
            if item.probe is not None
        ]

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write the rows of a layer, ``[kv head, row, dim]``, to their slots."""
        for held, new in ((self._pool.keys[layer], keys), (self._pool.values[layer], values)):
            for lane, slots, rows in self._written.runs:
                held[lane, :, slots] = new[:, rows]
            if (rest := self._written.rest) is not None:
                held[rest.lanes, :, rest.slots] = new[:, rest.rows].transpose(0, 1)

    def attend(
        self, layer: int, queries: torch.Tensor, scaling: float | None, window: int | None
    ) -> torch.Tensor:
        """Return outputs ``[row, head, dim]`` of queries ``[head, row, dim]`` of a layer."""
        by_row = queries.transpose(0, 1)
        out = torch.empty_like(by_row, memory_format=torch.contiguous_format)
        keys, values = self._pool.keys[layer], self._pool.values[layer]
        for part in self._parts:
            for piece in part.pieces(window):
                piece.put(out, piece.attend(by_row, keys, values, scaling, window))
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


def _selection(rows: Sequence[int], device: torch.device) -> slice | torch.Tensor:
    """Return what selects rows of a forward: a slice for a range, else their indices."""
    if isinstance(rows, range):
        return slice(rows.start, rows.stop)
    return _indices(iter(rows), device)


def _indices(values: Iterator[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.int64, device=device)


@dataclass(frozen=True, slots=True)
class _Scattered:
    """Rows of a forward with the lane and the slot of each: int64 tensors ``[row]``.

    All rows of the forward are a slice, so that decoding copies nothing.
    """

    rows: slice | torch.Tensor
    lanes: torch.Tensor
    slots: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Written:
    """The places of a forward's rows in the pool.

    Args:
        runs: neighbouring rows in neighbouring slots: a lane, its slots, and the rows.
        rest: all other rows.
    """

    runs: Sequence[tuple[int, slice, slice]]
    rest: _Scattered | None


def _written(rows: Sequence[SequenceRows], lanes: torch.Tensor, slots: torch.Tensor) -> _Written:
    runs: list[tuple[int, slice, slice]] = []
    rest: list[int] = []
    for item, start in placed(rows):
        first, behind = item.slots[0], item.slots[0] + len(item)
        if len(item) > 1 and list(item.slots) == list(range(first, behind)):
            runs.append((item.lane, slice(first, behind), slice(start, start + len(item))))
        else:
            rest += range(start, start + len(item))
    if not runs:
        return _Written(runs, _Scattered(slice(None), lanes, slots))
    if not rest:
        return _Written(runs, None)
    at = _indices(iter(rest), lanes.device)
    return _Written(runs, _Scattered(at, lanes[at], slots[at]))


def _parts(
    rows: Sequence[SequenceRows], pool: TensorPool, positions: torch.Tensor
) -> Iterator[_Part]:
    """Yield the parts of a forward, those of decoding sequences first."""
    for block in single_row_blocks(rows, pool):
        yield _Part(block, pool, positions)
    has_kernel = can_leave_out_masks(positions.device, pool.dtype, pool.keys.shape[-1])
    for item, start in placed(rows):
        if len(item) == 1:
            continue
        parts = [_Part(block, pool, positions) for block in prompt_blocks(item, start, pool)]
        if has_kernel and not isinstance(item.visible, Subtrees):
            # One product takes less time than the calls of several do.
            yield _Part(whole_block(item, start, pool), pool, positions, parts)
        else:
            yield from parts


class _Part:
    """A block with its tensors; what its rows see is looked up once for all layers.

    Args:
        block: the block.
        pool: holds keys, values and positions.
        positions: of the rows of the forward.
        divided: the same rows in smaller blocks, whose masks are smaller where they need any.
    """

    def __init__(
        self,
        block: Block,
        pool: TensorPool,
        positions: torch.Tensor,
        divided: Sequence[_Part] = (),
    ) -> None:
        self._divided = divided
        first, behind = block.lanes
        self._lanes = slice(first, behind)
        self._reach = block.reach
        device = positions.device
        # A prompt's rows are neighbours: a slice is a view where indices would copy.
        self._rows = _selection(block.rows, device)
        self._kept = None if block.kept is None else _indices(iter(block.kept), device)
        self._targets = self._rows
        if self._kept is not None:
            self._targets = _indices(iter(block.rows), device)[self._kept]
        self._own = positions[self._rows].view(behind - first, 1, -1, 1)
        self._tree = block.tree
        self._held = pool.positions[self._lanes, None, None, : block.reach]
        self._is_decoding = self._own.shape[2] == 1
        self._masks: dict[int | None, torch.Tensor] = {}
        self._least_window = self._window_without_mask(pool.dtype)

    def pieces(self, window: int | None) -> Sequence[_Part]:
        """Return what is computed: the block, or its division where it needs a mask."""
        if not self._divided or self._needs_no_mask(window):
            return (self,)
        return self._divided

    def put(self, out: torch.Tensor, outputs: torch.Tensor) -> None:
        """Put outputs of the rows that are kept into those of the forward, ``[row, head, dim]``."""
        if isinstance(self._targets, slice):
            out[self._targets] = outputs
        else:
            out.index_copy_(0, self._targets, outputs)

    def _own_queries(self, queries: torch.Tensor, kv_heads: int) -> torch.Tensor:
        """Return ``[row, kv head, query head, dim]`` of the block's rows."""
        if isinstance(self._rows, slice):
            return queries[self._rows].unflatten(1, (kv_heads, -1))
        return queries.index_select(0, self._rows).unflatten(1, (kv_heads, -1))

    def attend(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scaling: float | None,
        window: int | None,
    ) -> torch.Tensor:
        """Return outputs ``[row, head, dim]`` of the rows that are kept."""
        if self._needs_no_mask(window):
            return self._attend_unmasked(queries, keys, values, scaling)
        kv_heads = keys.shape[1]
        seen = [tensor[self._lanes, :, : self._reach] for tensor in (keys, values)]
        grouped = self._own_queries(queries, kv_heads)
        if not self._is_decoding:
            # The query heads that share keys are the batch, so that one mask serves all of them.
            grouped = grouped.permute(2, 1, 0, 3)
            seen = [tensor.expand(len(grouped), -1, -1, -1) for tensor in seen]
        mask = self._mask(window, queries.dtype)
        out = masked_attention(grouped, seen[0], seen[1], mask, scaling)
        by_row = out if self._is_decoding else out.permute(2, 1, 0, 3)
        merged = by_row.flatten(1, 2)
        return merged if self._kept is None else merged.index_select(0, self._kept)

    def _needs_no_mask(self, window: int | None) -> bool:
        return self._least_window is not None and (window is None or window >= self._least_window)

    def _attend_unmasked(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float | None
    ) -> torch.Tensor:
        seen_keys, seen_values = (
            tensor[self._lanes.start, :, : self._reach] for tensor in (keys, values)
        )
        grouped = self._own_queries(queries, keys.shape[1])
        attend = causal_attention if self._divided else split_attention
        out = attend(grouped.permute(1, 2, 0, 3), seen_keys, seen_values, scaling)
        return out.permute(2, 0, 1, 3).flatten(1, 2)

    def _window_without_mask(self, dtype: torch.dtype) -> int | None:
        """Return from which window on the rows need no mask but the causal one of their own slots.

        None where they need one: what lies before them has gaps or is not seen by all of them,
        their own slots are not the last, or they are those of a tree.
        """
        own, held = self._own.flatten(), self._held.flatten()
        before = self._reach - len(own)
        if self._is_decoding or self._tree is not None:
            return None
        if not self._divided and (
            before < LEAST_BEFORE or len(own) < LEAST_ROWS or not can_split(own.device, dtype)
        ):
            return None
        if not torch.equal(held[before:].long(), own) or not bool((own.diff() > 0).all()):
            return None
        first, last = int(own[0]), int(own[-1])
        if before and int(held[:before].max()) >= first:
            return None
        return last - int(held.min()) + 1

    def _mask(self, window: int | None, dtype: torch.dtype) -> torch.Tensor:
        """Return the additive mask, 0 or minus infinity: ``[lane, 1, row, slot]``."""
        if window not in self._masks:
            unseen = self._held > self._own
            if window is not None:
                unseen |= self._held <= self._own - window
            if self._tree is not None:
                slots = self._tree.slots
                hidden = torch.from_numpy(~self._tree.seen).to(unseen.device)
                unseen[..., slots.start : slots.stop] |= hidden
            mask = aligned_zeros(unseen.shape, dtype, unseen.device)
            self._masks[window] = mask.masked_fill_(unseen, -torch.inf)
        return self._masks[window]
