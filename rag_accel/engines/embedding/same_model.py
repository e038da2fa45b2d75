"""Checks that a model has not changed, and that two models are the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

from rag_accel.engines.compiled.network_description import describe, tensors
from rag_accel.engines.embedding.models import has_plain_encode, is_plain_model


def watch_of(model: Any) -> Callable[[], Callable[[], bool]] | None:
    """Return a function that starts a watch of a model; None where no change would be seen.

    Seen is what ``ModelWatch`` and ``TokenizerWatch`` see, and settings of the model itself such as
    its prompts.
    """
    if not is_plain_model(model):
        return None

    def watch() -> Callable[[], bool]:
        from rag_accel.engines.embedding.model_watch import ModelWatch, Settings, TokenizerWatch

        try:
            seen = ModelWatch(model)
        except RuntimeError:  # weights that count no changes
            return lambda: False
        settings, tokens = Settings(model), TokenizerWatch(model)
        return lambda: (
            has_plain_encode(model) and settings.are_same() and tokens.is_same() and seen.is_same()
        )

    return watch


def difference(model: Any, other: Any) -> str | None:
    """Return the difference of two sentence-transformers models; None if they compute the same.

    Compared are the kinds of their modules, all weights bit by bit, the length at which texts are
    cut, truncation of vectors, and the vocabularies.
    """
    import torch

    if model is other:
        return None
    if [type(part) for part in model.modules()] != [type(part) for part in other.modules()]:
        return "other modules"
    weights, others = model.state_dict(), other.state_dict()
    if weights.keys() != others.keys():
        return "other weights"
    for name, weight in weights.items():
        if weight.dtype != others[name].dtype or not torch.equal(weight.cpu(), others[name].cpu()):
            return f"other weights ({name})"
    for setting in ("max_seq_length", "truncate_dim"):
        if getattr(model, setting, None) != getattr(other, setting, None):
            return f"another {setting}"
    if _vocabulary(model) != _vocabulary(other):
        return "another vocabulary"
    return None


def model_digest(model: Any) -> str:
    """Return a digest of a model's networks, settings, weights and buffers; reads all of them."""
    networks = [describe(getattr(part, "model", part)) for part in model.children()]
    digest = hashlib.sha256(json.dumps(networks).encode())
    for name, tensor in tensors(model):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _vocabulary(model: Any) -> Any:
    tokenizer = getattr(model, "tokenizer", None)
    read = getattr(tokenizer, "get_vocab", None)
    return None if read is None else read()
