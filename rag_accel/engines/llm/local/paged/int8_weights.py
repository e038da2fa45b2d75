"""The weights of a model's products in int8, each row with a scale."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rag_accel.engines.llm.local.model.runner import states_identity

#: Says how weights and the other factors of products are rounded; it changes with every change of
#: that, also of ``making.INT8_SETTINGS``: states and verdicts of another way do not apply.
RECIPE = "int8, symmetric, a float32 scale a row; other factors by 32 together; 1"
_LARGEST = 127


@dataclass(frozen=True, slots=True)
class Int8Rows:
    """A weight of a product in int8.

    Args:
        rows: ``[out, in], int8``, of -127 to 127.
        scales: ``[out, 1], float32``, by which the rows are multiplied.
    """

    rows: torch.Tensor
    scales: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Return the bytes of both."""
        return self.rows.nbytes + self.scales.nbytes

    @classmethod
    def of(cls, weight: torch.Tensor) -> Int8Rows:
        """Return a weight ``[out, in]`` rounded: the largest component of a row becomes 127."""
        wide = weight.detach().float()
        found = wide.abs().amax(dim=1, keepdim=True) / _LARGEST
        scales = torch.where(found == 0, 1.0, found)  # of zeros, and of what is next to them
        return cls((wide / scales).round_().to(torch.int8), scales)

    def widened(self) -> torch.Tensor:
        """Return the weight that the rows stand for: ``[out, in], float32``."""
        return self.rows.float() * self.scales


@dataclass(frozen=True, slots=True)
class Int8Weights:
    """The weights of a model's products in int8.

    Args:
        identity: of what they compute.
        rows: by the names of the weights.
    """

    identity: str
    rows: Mapping[str, Int8Rows]

    @classmethod
    def of(cls, model: Any) -> Int8Weights:
        """Return the rounded weights of a model of transformers; reads all of its own."""
        identity = f"{RECIPE}\0{states_identity(model)}"
        return cls(hashlib.sha256(identity.encode()).hexdigest(), quantised(model))


@torch.inference_mode(False)
@torch.no_grad()
def quantised(model: Any) -> dict[str, Int8Rows]:
    """Return the weights of a model's products in int8, by name.

    A table of embeddings that is the output layer's weight, too, is one of them: there is one copy.
    """
    products = {
        id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Linear)
    }
    return {
        name: Int8Rows.of(weight)
        for name, weight in model.named_parameters()
        if id(weight) in products
    }
