"""Causal attention of a block of a prompt in two products without a mask, merged.

All rows of a block see everything that lies before it, so that this part needs no mask. Only the
block's own slots are causal, which the kernel knows by itself and computes half of. The results are
merged with the logarithms of the sums of both softmaxes, as in FlashAttention (arXiv:2205.14135,
section 3.1), and equal those of one product up to rounding.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

#: What the kernel is proved with. A private operator may be gone, or be another, in any version.
_PROOF_HEADS, _PROOF_GROUP, _PROOF_ROWS, _PROOF_BEFORE, _PROOF_DIM = 2, 3, 5, 7, 8
_PROOF_BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 2**-5}


def can_split(device: torch.device, dtype: torch.dtype) -> bool:
    """Tell whether blocks are computed in two products here: on processors, by a proved kernel."""
    return (
        device.type == "cpu"
        and dtype in _PROOF_BOUNDS
        and torch.backends.cuda.flash_sdp_enabled()  # the switch of all devices
        and _is_proved(dtype)
    )


def split_attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    """Return outputs ``[kv head, query head, row, dim]`` of the last rows of a sequence.

    Args:
        queries: ``[kv head, query head, row, dim]``, those that share keys together.
        keys: ``[kv head, slot, dim]``: what all rows see, then a slot of each row.
        values: of the same shape.
        scaling: the factor of the scores; None for that of the dim.
    """
    kv_heads, group, rows, _ = queries.shape
    before = keys.shape[1] - rows
    shape = (kv_heads, group, -1, -1)
    own_keys, own_values = (part[:, None, before:].expand(shape) for part in (keys, values))
    own, own_sums = _flash(queries, own_keys, own_values, is_causal=True, scaling=scaling)
    if not before:
        return own
    # Without a mask, heads that share keys are as good as further rows: each key is read once.
    earlier, earlier_sums = _flash(
        queries.flatten(1, 2)[None],
        keys[None, :, :before],
        values[None, :, :before],
        is_causal=False,
        scaling=scaling,
    )
    weights = torch.sigmoid(earlier_sums.view(own_sums.shape) - own_sums)[..., None]
    merged = torch.lerp(own.float(), earlier.view(own.shape).float(), weights)
    return merged.to(queries.dtype)


def _flash(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    is_causal: bool,
    scaling: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return outputs and, in float32, the logarithms of the sums ``[batch, head, row]``."""
    kernel: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # pyright: ignore[reportPrivateUsage]
    out, sums = kernel(queries, keys, values, 0.0, is_causal, scale=scaling)
    return out, sums.contiguous()


@cache
def _is_proved(dtype: torch.dtype) -> bool:
    """Compare a small example with the masked product of torch's public function."""
    generator = torch.Generator().manual_seed(0)
    slots = _PROOF_BEFORE + _PROOF_ROWS
    # Ordinary tensors on the processor, whatever the mode and the default device of the caller.
    with torch.inference_mode(), torch.device("cpu"):
        queries, keys, values = (
            torch.randn(_PROOF_HEADS, heads, rows, _PROOF_DIM, generator=generator).to(dtype)
            for heads, rows in ((_PROOF_GROUP, _PROOF_ROWS), (1, slots), (1, slots))
        )
        seen = torch.ones(_PROOF_ROWS, slots, dtype=torch.bool).tril(_PROOF_BEFORE)
        expected = torch.nn.functional.scaled_dot_product_attention(
            *(part.float() for part in (queries, keys, values)), attn_mask=seen, scale=0.5
        )
        try:
            found = split_attention(queries, keys[:, 0], values[:, 0], 0.5)
        except (AttributeError, RuntimeError, TypeError, ValueError):
            return False
        if found.shape != expected.shape:
            return False
        return bool((found.float() - expected).abs().max() <= _PROOF_BOUNDS[dtype])
