"""Identity of a model whose attention states are kept: a digest of its settings and weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import torch

#: Settings about the origin of a model, which do not change what it computes.
_ASIDE = frozenset({"transformers_version", "architectures", "use_cache"})
#: The most bytes that are copied to the host at once.
_PIECE = 1 << 26


def model_identity(model: Any, *, how: str) -> str:
    """Return 64 hexadecimal digits: equal only for states that one model computes in one way.

    Hashed are the settings and every byte of weights and buffers, with names, dtypes and shapes.
    Less would not do: fine-tuned models have the sizes and headers of the one they began with, and
    may differ in a few rows. It takes about a second for a gigabyte.

    Args:
        model: of transformers, loaded, in the dtype it runs in.
        how: further conditions of states, such as a library's version and the kind of attention.
    """
    digest = hashlib.sha256()
    for part in (how, str(model.dtype), _settings(model)):
        _add(digest, part.encode("utf-8", "surrogatepass"))
    for name, tensor in _tensors(model):
        _add(digest, f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        _add_tensor(digest, tensor)
    return digest.hexdigest()


def _settings(model: Any) -> str:
    settings = {
        name: value
        for name, value in model.config.to_dict().items()
        if name not in _ASIDE and not name.startswith("_")
    }
    # A model that was never saved lacks it, or has another one than its weights.
    settings["dtype"] = str(model.dtype).removeprefix("torch.")
    return json.dumps(settings, sort_keys=True, default=str)


def _tensors(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    yield from sorted(model.named_parameters())
    yield from sorted(model.named_buffers())


def _add(digest: Any, part: bytes) -> None:
    digest.update(len(part).to_bytes(8, "little"))
    digest.update(part)


@torch.no_grad()
def _add_tensor(digest: Any, tensor: torch.Tensor) -> None:
    flat = tensor.detach().contiguous().reshape(-1)
    for piece in flat.split(max(1, _PIECE // tensor.dtype.itemsize)):
        octets: Any = piece.cpu().view(torch.uint8).numpy()
        digest.update(octets)
