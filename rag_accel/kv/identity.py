"""Identity of a model whose attention states are kept: a digest of its settings and weights.

A model in memory and the checkpoint that it is loaded from have the same one, so that processes
which compute it with different libraries find each other's states.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from rag_accel.errors import ConfigError
from rag_accel.kv.rotation import rotation_frequencies, rotation_of

#: The conditions of states that any library computes by the model's own definition.
STATES = "keys rotated, values; causal"
#: Settings about the origin of a model, which do not change what it computes.
_ASIDE = frozenset({"transformers_version", "architectures", "use_cache"})
_TIED = "lm_head.weight"
#: The most bytes that are copied to the host at once.
_PIECE = 1 << 26


def model_identity(model: Any, *, how: str) -> str:
    """Return 64 hexadecimal digits: equal only for states that one model computes in one way.

    Hashed are the settings, every byte of weights and persistent buffers, with names, dtypes and
    shapes, and the frequencies of the rotation. Less would not do: fine-tuned models have the
    sizes and headers of the one they began with, and may differ in a few rows. It takes about a
    second for a gigabyte.

    Args:
        model: of transformers, loaded, in the dtype it runs in.
        how: further conditions of states, such as a library's version and the kind of attention.
    """
    digest = _begun(how, model.dtype, model.config)
    frequencies = rotation_of(model)
    if frequencies is not None:
        _add_tensor(digest, frequencies)
    for name, tensor in _tensors(model):
        _add_named(digest, name, tensor)
    return digest.hexdigest()


def checkpoint_identity(folder: Path, dtype: torch.dtype, *, how: str) -> str:
    """Return the identity of the model that a checkpoint's folder gives in a dtype.

    Equal to ``model_identity`` of the model loaded from it. Reads all its weights.

    Args:
        folder: with ``config.json`` and weights in safetensors.
        dtype: the model runs in.
        how: as of ``model_identity``.

    Raises:
        ConfigError: there are no weights in safetensors.
    """
    from safetensors import safe_open
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    digest = _begun(how, dtype, config)
    frequencies = rotation_frequencies(config)
    if frequencies is not None:
        _add_tensor(digest, frequencies)
    places: dict[str, Path] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            places |= dict.fromkeys(file.keys(), path)
    if not places:
        raise ConfigError(
            "the weights of this checkpoint cannot be told apart from others",
            where=str(folder),
            found="no file of safetensors",
            valid="a folder with config.json and weights in safetensors",
            hint="save the model again by save_pretrained",
        )
    if getattr(config, "tie_word_embeddings", False):
        places.pop(_TIED, None)
    for name in sorted(places):
        with safe_open(places[name], "pt") as file:
            tensor = file.get_tensor(name)
        _add_named(digest, name, tensor.to(dtype) if tensor.is_floating_point() else tensor)
    return digest.hexdigest()


def _begun(how: str, dtype: torch.dtype, config: Any) -> Any:
    digest = hashlib.sha256()
    for part in (how, str(dtype), _settings(config, dtype)):
        _add(digest, part.encode("utf-8", "surrogatepass"))
    return digest


def _settings(config: Any, dtype: torch.dtype) -> str:
    settings = {
        name: value
        for name, value in config.to_dict().items()
        if name not in _ASIDE and not name.startswith("_")
    }
    # A model that was never saved lacks it, or has another one than its weights.
    settings["dtype"] = str(dtype).removeprefix("torch.")
    return json.dumps(settings, sort_keys=True, default=str)


def _tensors(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield parameters, tied ones once, and the buffers that a checkpoint has."""
    kept = model.state_dict().keys()
    yield from sorted(
        [
            *model.named_parameters(),
            *(pair for pair in model.named_buffers() if pair[0] in kept),
        ]
    )


def _add_named(digest: Any, name: str, tensor: torch.Tensor) -> None:
    _add(digest, f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
    _add_tensor(digest, tensor)


def _add(digest: Any, part: bytes) -> None:
    digest.update(len(part).to_bytes(8, "little"))
    digest.update(part)


@torch.no_grad()
def _add_tensor(digest: Any, tensor: torch.Tensor) -> None:
    flat = tensor.detach().contiguous().reshape(-1)
    for piece in flat.split(max(1, _PIECE // tensor.dtype.itemsize)):
        octets: Any = piece.cpu().view(torch.uint8).numpy()
        digest.update(octets)
