"""Multiply with oneDNN where its kernel beats torch's own, without touching the model.

torch multiplies float32 matrices on the CPU with MKL, which uses half of what some processors can
do (105 of 250 GFLOP/s on a core of AMD Zen 5). oneDNN, built into torch too, is reached through
weights that were laid out for it beforehand. The sums are the same numbers added in another order,
so results differ by about 1e-7 of their size, as they do between batch sizes anyway.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

#: Rows of the product that decides: some texts of one micro-batch.
_ROWS = 128
_REPEATS = 5
#: The packed product must take at most this share of the plain one's time.
_WORTH_IT = 0.9
#: Largest difference, in units of the plain product's largest component.
_TOLERANCE = 1e-5
_SAMPLES = 8


@dataclass(frozen=True, slots=True)
class _Packed:
    """Hold one weight in oneDNN's layout, and what shows that it still is the model's."""

    weight: torch.Tensor
    packed: torch.Tensor
    version: int
    address: int

    def is_of(self, weight: torch.Tensor) -> bool:
        """Tell whether ``weight`` is the one that was packed, with no change that torch counts."""
        return (
            weight is self.weight
            and weight._version == self.version
            and weight.data_ptr() == self.address
        )


class PackedLinears:
    """Hold a model's linear weights a second time, laid out for oneDNN.

    Inside ``used()`` the calling thread's linear layers take them; other threads, hooks, adapters
    and the model itself notice nothing. A weight that was changed since is never used: torch's own
    version counter, the weight's address and, for writes past both (``weight.data.mul_(2)``), a
    sample of each weight's components tell.
    """

    def __init__(self, weights: Sequence[torch.Tensor]) -> None:
        self._packed = {id(weight): _pack(weight) for weight in weights}
        flat = [weight.detach().view(-1) for weight in weights]
        self._watched = [one[:: max(1, len(one) // _SAMPLES)] for one in flat]
        self._sample = torch.cat(self._watched)
        self._mode = _OneDnnLinear(self._packed)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Let the calling thread's linear layers use the packed weights until the block ends."""
        if not self._packed:
            yield
            return
        if not torch.equal(torch.cat(self._watched), self._sample):
            self._packed.clear()  # somebody trains this model: leave it alone from now on
        with self._mode:
            yield


class _OneDnnLinear(TorchFunctionMode):
    """Replace ``torch.nn.functional.linear`` where its weight is packed."""

    def __init__(self, packed: Mapping[int, _Packed]) -> None:
        super().__init__()
        self._packed = packed

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> torch.Tensor:
        if func is torch.nn.functional.linear and len(args) == 3 and not kwargs:
            rows, weight, bias = args
            found = self._packed.get(id(weight))
            if found is not None and found.is_of(weight) and _is_usual(rows):
                return _product(rows, found.packed, bias)
        return func(*args, **(kwargs or {}))


def packed_linears(model: Any, limit: int) -> PackedLinears | None:
    """Pack the float32 weights of a model's linear layers, or return None where that is no use.

    That is where torch has no such kernel, where it gives other numbers, or where it is not faster
    for the model's largest layer on the calling thread's number of threads.

    Args:
        model: a ``torch.nn.Module`` on the CPU.
        limit: most bytes that the packed weights may take; a model with more is left alone.
    """
    layers = [layer for layer in model.modules() if _is_packable(layer)]
    weights = list({id(layer.weight): layer.weight for layer in layers}.values())
    if not 0 < sum(weight.nbytes for weight in weights) <= limit:
        return None
    try:
        with torch.no_grad():
            if not _pays(max(weights, key=lambda weight: weight.numel())):
                return None
            return PackedLinears(weights)
    except (AttributeError, RuntimeError, NotImplementedError):
        return None  # this build of torch has no such kernel, or refuses these weights


def _is_packable(layer: Any) -> bool:
    if not isinstance(layer, torch.nn.Linear):
        return False
    weight = layer.weight
    return (
        type(weight) is torch.nn.Parameter
        and weight.device.type == "cpu"
        and weight.dtype is torch.float32
        and weight.is_contiguous()
        and weight.numel() > 0
        and not weight.is_inference()
    )


def _is_usual(rows: torch.Tensor) -> bool:
    """Tell whether the kernel takes these rows; a gradient would not pass through it."""
    return (
        rows.dtype is torch.float32
        and rows.device.type == "cpu"
        and rows.numel() > 0
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
    )


def _pack(weight: torch.Tensor) -> _Packed:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
    return _Packed(weight, packed, weight._version, weight.data_ptr())


def _product(rows: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise(rows, packed, bias, "none", [], "")


def _pays(weight: torch.Tensor) -> bool:
    packed = _pack(weight).packed
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(_ROWS, weight.shape[1], generator=generator)
    plain_s, expected = _timed(lambda: torch.nn.functional.linear(rows, weight))
    packed_s, found = _timed(lambda: _product(rows, packed, None))
    close = (found - expected).abs().max() <= _TOLERANCE * expected.abs().max()
    return bool(close) and packed_s <= _WORTH_IT * plain_s


def _timed(run: Callable[[], torch.Tensor]) -> tuple[float, torch.Tensor]:
    result = run()
    best = float("inf")
    for _ in range(_REPEATS):
        begun = time.perf_counter()
        result = run()
        best = min(best, time.perf_counter() - begun)
    return best, result
