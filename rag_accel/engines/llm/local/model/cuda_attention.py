"""Attention on a CUDA device by kernels that are not planned again for each shape.

Left to choose, torch takes cuDNN's attention for 16-bit numbers, and plans it for each length that
it has not seen, which takes longer than a small model's whole forward. Which kernels may be chosen
is a switch of the whole process, so that the operators are called by their names here. They are
private, and proved on the device before they are used.

A prompt's rows need no mask: a row sees all slots up to its own, which the kernels know by
themselves where the rows are the last of the slots.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

#: Of the example that proves them.
_PROOF_KV_HEADS, _PROOF_GROUP, _PROOF_ROWS, _PROOF_BEFORE, _PROOF_SCALE = 2, 3, 37, 91, 0.1
_PROOF_BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 2**-5}
#: Of the operator's ``custom_mask_type``: a row of the last slots sees all up to its own.
_CAUSAL_FROM_THE_END = 2
#: A row of a mask begins at a multiple of so many elements, or the kernel copies the mask.
MASK_STRIDE = 16


def can_leave_out_masks(device: torch.device, dtype: torch.dtype, dim: int) -> bool:
    """Tell whether ``causal_attention`` computes here, with heads of so many components."""
    is_known = device.type == "cuda" and torch.cuda.is_available() and dtype in _PROOF_BOUNDS
    return is_known and _is_allowed(dtype) and _is_proved(device, dtype, dim)


def causal_attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    """Return outputs ``[kv head, query head, row, dim]`` of the last rows of a sequence.

    Args:
        queries: ``[kv head, query head, row, dim]``, those that share keys together.
        keys: ``[kv head, slot, dim]``: what all rows see, then a slot of each row.
        values: of the same shape.
        scaling: the factor of the scores; None for that of the dim.
    """
    # The key heads are the batch: those that queries share are repeated without a copy.
    shape = (-1, queries.shape[1], -1, -1)
    seen = [part[:, None].expand(shape) for part in (keys, values)]
    operators: Any = torch.ops.aten
    if queries.dtype is torch.float32:
        given = [tensor.transpose(1, 2) for tensor in (queries, *seen)]
        found = operators._efficient_attention_forward(
            *given,
            *(None, None, None, None, None),  # no bias, one length for all
            0.0,
            _CAUSAL_FROM_THE_END,
            scale=scaling,
        )
        return found[0].transpose(1, 2)
    found = operators._scaled_dot_product_flash_attention(
        queries, *seen, 0.0, is_causal=True, scale=scaling
    )
    return found[0]


def masked_attention(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    scaling: float | None,
) -> torch.Tensor:
    """Return what ``scaled_dot_product_attention`` does, on a CUDA device without cuDNN.

    Args:
        queries: ``[batch, head, row, dim]``.
        keys: ``[batch, head, slot, dim]``.
        values: of the same shape.
        mask: additive, of a shape that extends to ``[batch, head, row, slot]``.
        scaling: the factor of the scores; None for that of the dim.
    """
    dtype, device = queries.dtype, queries.device
    is_chosen_here = (
        device.type == "cuda"
        and dtype is torch.bfloat16
        and torch.backends.cuda.mem_efficient_sdp_enabled()
        and mask.stride(-2) % MASK_STRIDE == 0
        and _is_proved(device, dtype, queries.shape[-1])
    )
    if is_chosen_here:
        return _efficient(queries, keys, values, mask, scaling)
    return torch.nn.functional.scaled_dot_product_attention(
        queries, keys, values, attn_mask=mask, scale=scaling
    )


def _efficient(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    scaling: float | None,
) -> torch.Tensor:
    operators: Any = torch.ops.aten
    shape = (*queries.shape[:3], keys.shape[2])
    return operators._scaled_dot_product_efficient_attention(
        queries, keys, values, mask.expand(shape), False, scale=scaling
    )[0]


def aligned_zeros(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return zeros whose rows begin where a kernel of a CUDA device reads them without a copy."""
    if device.type != "cuda":
        return torch.zeros(shape, dtype=dtype, device=device)
    width = -(-shape[-1] // MASK_STRIDE) * MASK_STRIDE
    return torch.zeros(*shape[:-1], width, dtype=dtype, device=device)[..., : shape[-1]]


def _is_allowed(dtype: torch.dtype) -> bool:
    """Tell whether the process has left the kernel for a dtype switched on."""
    backends = torch.backends.cuda
    if dtype is torch.float32:
        return backends.mem_efficient_sdp_enabled()
    return backends.flash_sdp_enabled()


@cache
def _is_proved(device: torch.device, dtype: torch.dtype, dim: int) -> bool:
    """Compare both operators with torch's public function, behind other rows and from the start."""
    slots = _PROOF_BEFORE + _PROOF_ROWS
    try:
        # Ordinary tensors, whatever the mode and the default device of the caller.
        with torch.inference_mode(), torch.device("cpu"):
            return all(_agree(device, dtype, dim, rows, slots) for rows in (_PROOF_ROWS, slots))
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return False


def _agree(device: torch.device, dtype: torch.dtype, dim: int, rows: int, slots: int) -> bool:
    """Tell whether the last rows of a small example have the outputs of products in float64."""
    generator = torch.Generator().manual_seed(rows)
    shapes = ((_PROOF_GROUP, rows), (1, slots), (1, slots))
    queries, keys, values = (
        torch.randn(_PROOF_KV_HEADS, heads, count, dim, generator=generator).to(dtype)
        for heads, count in shapes
    )
    seen = torch.ones(rows, slots, dtype=torch.bool).tril(slots - rows)
    expected = torch.nn.functional.scaled_dot_product_attention(
        queries.double(), keys.double(), values.double(), attn_mask=seen, scale=_PROOF_SCALE
    )
    mask = aligned_zeros(torch.Size((1, 1, rows, slots)), dtype, device)
    mask.masked_fill_(~seen.to(device), -torch.inf)
    queries, keys, values = (part.to(device) for part in (queries, keys, values))
    shape = (-1, _PROOF_GROUP, -1, -1)
    found = (
        causal_attention(queries, keys[:, 0], values[:, 0], _PROOF_SCALE),
        _efficient(queries, keys.expand(shape), values.expand(shape), mask, _PROOF_SCALE),
    )
    return all(
        outputs.shape == expected.shape
        and bool((outputs.cpu().double() - expected).abs().max() <= _PROOF_BOUNDS[dtype])
        for outputs in found
    )
