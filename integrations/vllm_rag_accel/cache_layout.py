"""The places of keys and values in a block, learnt from the attention backend's own writer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from rag_accel.errors import ConfigError

#: Digits that every floating dtype holds exactly.
_BASE = 64


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """The places of a block's elements in its memory.

    Args:
        keys: of token ``t`` and component ``c`` of a head, ``keys[t * dim + c]``, int64.
        values: the same.
        block: tokens.
        dim: components.
    """

    keys: torch.Tensor
    values: torch.Tensor
    block: int
    dim: int

    def read(self, cache: torch.Tensor, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values of slots, ``[slot, head, dim]`` each, copied.

        Args:
            cache: of one layer, ``[block, head, token, 2 * dim]``.
            slots: int64, places of tokens in all blocks.
        """
        numbers, inverse = torch.unique(slots // self.block, return_inverse=True)
        flat = cache[numbers].reshape(len(numbers), cache.shape[1], -1)
        at = slots % self.block
        read: list[torch.Tensor] = []
        for places in (self.keys, self.values):
            whole = flat[:, :, places.to(flat.device)]
            whole = whole.view(len(numbers), cache.shape[1], self.block, self.dim)
            read.append(whole[inverse, :, at])
        return read[0], read[1]


def learn_layout(layer: Any, cache: torch.Tensor) -> CacheLayout:
    """Return the layout of a layer's cache, found by writing numbers through the layer's writer.

    Args:
        layer: an attention layer of vLLM.
        cache: its blocks, ``[block, head, token, 2 * dim]``; left as they are.

    Raises:
        ConfigError: the backend does not keep every element once, as a quantised cache does not.
    """
    if cache.ndim != 4 or cache.shape[-1] % 2:
        raise _refusal(f"blocks of shape {tuple(cache.shape)}")
    _, heads, block, width = cache.shape
    dim = width // 2
    places = [_places(layer, cache, which, heads, block, dim) for which in (0, 1)]
    if set(places[0].tolist()) & set(places[1].tolist()):
        raise _refusal("keys and values in one place")
    return CacheLayout(places[0], places[1], block, dim)


def _places(
    layer: Any, cache: torch.Tensor, which: int, heads: int, block: int, dim: int
) -> torch.Tensor:
    count = block * dim
    code = torch.arange(count).view(block, 1, dim).expand(block, heads, dim)
    found = torch.zeros(heads, 2 * count, dtype=torch.int64)
    used = torch.zeros(heads, 2 * count, dtype=torch.bool)
    digit = 1
    while digit < count:
        part = (code // digit % _BASE + 1).to(cache.dtype).to(cache.device).contiguous()
        other = torch.zeros_like(part)
        scratch = torch.zeros_like(cache[:1])
        slots = torch.arange(block, dtype=torch.int64, device=cache.device)
        keys, values = (part, other) if which == 0 else (other, part)
        layer.impl.do_kv_cache_update(layer, keys, values, scratch, slots)
        flat = scratch.reshape(heads, -1).float().round().long().cpu()
        used = flat > 0
        found += torch.where(used, (flat - 1) * digit, 0)
        digit *= _BASE
    where = used[0].nonzero().squeeze(1)
    is_alike = all(torch.equal(used[head], used[0]) for head in range(heads)) and all(
        torch.equal(found[head], found[0]) for head in range(heads)
    )
    if len(where) != count or not is_alike:
        raise _refusal(f"{len(where)} places of {count} elements")
    order = found[0][where]
    if not torch.equal(order.sort().values, torch.arange(count)):
        raise _refusal("numbers that were not written")
    places = torch.empty(count, dtype=torch.int64)
    places[order] = where
    return places


def _refusal(found: str) -> ConfigError:
    return ConfigError(
        "the attention backend keeps keys and values in a way that cannot be read back",
        where="vllm_rag_accel, cache of keys and values",
        found=found,
        valid="a backend that writes each element to one place of its block, unquantised",
        hint="leave --kv-cache-dtype at auto, or choose another --attention-backend",
    )
