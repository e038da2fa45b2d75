"""Name what decides how fast a model is, so that what was measured of it is found again."""

from __future__ import annotations

import hashlib
import sys
from typing import Any


def model_speed_key(model: Any, *settings: object) -> str:
    """Return a digest of a torch model's layers, shapes, precision and device, and of settings.

    The values of the weights are not in it: they do not change the time. Empty for anything
    else.
    """
    torch = sys.modules.get("torch")  # without it nothing can be such a model
    if torch is None or not isinstance(model, torch.nn.Module):
        return ""
    digest = hashlib.sha256()
    for module in model.modules():
        digest.update(f"{type(module).__module__}.{type(module).__qualname__}\n".encode())
    for name, weights in model.named_parameters():
        about = f"{name} {tuple(weights.shape)} {weights.dtype} {weights.device}\n"
        digest.update(about.encode())
    digest.update(repr(settings).encode())
    return digest.hexdigest()[:32]
