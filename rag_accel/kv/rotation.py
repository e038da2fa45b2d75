"""Rotated keys moved to other positions (FusionRAG section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rag_accel.kv.entry import KeyValues, LaneState


def rotated(keys: torch.Tensor, distance: int, frequencies: torch.Tensor) -> torch.Tensor:
    """Return keys as they are ``distance`` positions later, in the dtype they have.

    Halves of a head are rotated against each other, as models of transformers do. A factor that
    some kinds of rotation put on all keys stays as it is.

    Args:
        keys: ``[..., token, dim]``.
        distance: positions; negative for earlier ones.
        frequencies: the model's own, ``[dim / 2]``, float32, radians a position.
    """
    if distance == 0:
        return keys
    angles = frequencies.to(torch.float64) * distance
    cos, sin = angles.cos().to(torch.float32), angles.sin().to(torch.float32)
    first, second = (half.float() for half in keys.chunk(2, dim=-1))
    # Written in place, half by half: other temporary tensors take longer than the products.
    moved = torch.empty(keys.shape, dtype=torch.float32, device=keys.device)
    to_first, to_second = moved.chunk(2, dim=-1)
    torch.mul(first, cos, out=to_first).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=to_second).addcmul_(first, sin)
    return moved.to(keys.dtype)


def moved_together(
    states: Sequence[LaneState],
    positions: Sequence[int],
    frequencies: torch.Tensor,
    device: torch.device | str = "cpu",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the keys and values of several states one behind the other.

    Args:
        states: ``KeyValues``, at least one.
        positions: where the first token of each is moved to.
        frequencies: as of ``rotated``.
        device: where both tensors are to be.
    """
    keys: list[torch.Tensor] = []
    values: list[torch.Tensor] = []
    for state, position in zip(states, positions, strict=True):
        assert isinstance(state, KeyValues)
        keys.append(rotated(state.keys.to(device), position - state.position, frequencies))
        values.append(state.values.to(device))
    if len(keys) == 1:
        return keys[0], values[0]
    return torch.cat(keys, dim=2), torch.cat(values, dim=2)


def rotation_of(model: Any) -> torch.Tensor | None:
    """Return the frequencies of a model of transformers; None where they depend on the length."""
    rotary = getattr(model.get_decoder(), "rotary_emb", None)
    frequencies = getattr(rotary, "inv_freq", None)
    if frequencies is None or getattr(rotary, "rope_type", "default") in ("dynamic", "longrope"):
        return None
    return frequencies


def rotation_frequencies(config: Any) -> torch.Tensor | None:
    """Return the frequencies of the model that a configuration describes, as ``rotation_of`` does.

    Args:
        config: of transformers, with ``rope_parameters``.

    Return None where the configuration names one rotation for several kinds of layers, or one that
    depends on the length.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters: Any = getattr(config, "rope_parameters", None)
    if not isinstance(parameters, dict) or "rope_theta" not in parameters:
        return None
    kind = parameters.get("rope_type", "default")
    if kind in ("dynamic", "longrope"):
        return None
    if kind != "default":
        return ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))[0].float()
    heads = config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    dim = int(dim * parameters.get("partial_rotary_factor", 1.0))
    places = torch.arange(0, dim, 2, dtype=torch.int64).float()
    return 1.0 / (parameters["rope_theta"] ** (places / dim))
