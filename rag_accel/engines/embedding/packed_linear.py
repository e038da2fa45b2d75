"""Lay a model's float32 weights out for oneDNN, where its kernel beats torch's own.

torch multiplies float32 matrices on the CPU with MKL, which uses half of what some processors can
do (105 of 250 GFLOP/s on a core of AMD Zen 5). oneDNN, built into torch too, is reached through
weights that were laid out for it beforehand. The sums are the same numbers added in another order,
so results differ by about 1e-7 of their size, as they do between batch sizes anyway.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

#: Rows of the product that decides: some texts of one micro-batch.
_ROWS = 128
_REPEATS = 5
#: The packed product must take at most this share of the plain one's time.
_WORTH_IT = 0.9
#: Largest difference, in units of the plain product's largest component.
_TOLERANCE = 1e-5


def pack_linear_layers(model: Any) -> int:
    """Replace the linear layers of a float32 CPU model by packed ones; return how many.

    Nothing is replaced where torch has no such kernel, where it gives other numbers or where it
    is not faster for the model's largest layer on the calling thread's number of threads. The
    model can then be used for inference only: pass one that nobody else holds.
    """
    import torch

    layers = [layer for layer in model.modules() if _is_packable(layer)]
    if not layers:
        return 0
    try:
        with torch.no_grad():
            if not _pays(max(layers, key=lambda layer: layer.weight.numel())):
                return 0
            return sum(_replace_children(module) for module in list(model.modules()))
    except (AttributeError, RuntimeError, NotImplementedError):
        return 0  # this build of torch has no such kernel, or refuses these weights


def _is_packable(layer: Any) -> bool:
    import torch

    return (
        type(layer) is torch.nn.Linear
        and layer.weight.device.type == "cpu"
        and layer.weight.dtype is torch.float32
        and not (layer._forward_hooks or layer._forward_pre_hooks)
    )


def _pays(layer: torch.nn.Linear) -> bool:
    import torch

    packed = _packed(layer)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(_ROWS, layer.in_features, generator=generator)
    plain_s, expected = _timed(layer, rows)
    packed_s, found = _timed(packed, rows)
    close = (found - expected).abs().max() <= _TOLERANCE * expected.abs().max()
    return bool(close) and packed_s <= _WORTH_IT * plain_s


def _timed(
    layer: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor
) -> tuple[float, torch.Tensor]:
    result = layer(rows)
    best = float("inf")
    for _ in range(_REPEATS):
        begun = time.perf_counter()
        result = layer(rows)
        best = min(best, time.perf_counter() - begun)
    return best, result


def _replace_children(module: Any) -> int:
    replaced = 0
    for name, child in list(module.named_children()):
        if _is_packable(child):
            setattr(module, name, _packed(child))
            replaced += 1
    return replaced


def _packed(layer: torch.nn.Linear) -> torch.nn.Module:
    import torch

    operators = torch.ops.mkldnn

    class PackedLinear(torch.nn.Module):
        """Compute ``torch.nn.Linear`` with a weight of oneDNN's own layout."""

        def __init__(self) -> None:
            super().__init__()
            self.in_features = layer.in_features
            self.out_features = layer.out_features
            weight = operators._reorder_linear_weight(layer.weight.detach(), None)
            self.weight = torch.nn.Parameter(weight, requires_grad=False)
            self.bias = layer.bias

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            if rows.numel() == 0:
                return rows.new_zeros((*rows.shape[:-1], self.out_features))
            return operators._linear_pointwise(rows, self.weight, self.bias, "none", [], "")

    return PackedLinear()
