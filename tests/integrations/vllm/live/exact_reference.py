"""A reference for prompts with reused states: a transformers model over explicit slots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

_NAME = "rag_accel_reference"


class Reference:
    """A model whose keys and values stand in slots, one for each position of one prompt.

    Args:
        path: of the model, float32.
        most: positions.
    """

    def __init__(self, path: Path, most: int = 2048) -> None:
        from transformers import AttentionInterface, AutoModelForCausalLM
        from transformers.masking_utils import AttentionMaskInterface

        AttentionInterface.register(_NAME, _attend)
        AttentionMaskInterface.register(_NAME, lambda *given, **named: None)
        self.model: Any = AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, attn_implementation=_NAME
        ).eval()
        config = self.model.config
        shape = config.num_hidden_layers, config.num_key_value_heads, most, config.head_dim
        self.keys, self.values = torch.zeros(shape), torch.zeros(shape)
        self.places = torch.zeros(0, dtype=torch.int64)
        self.looks: list[torch.Tensor] = []
        for layer in self.model.model.layers:
            layer.self_attn.reference = self
        theta = config.rope_parameters["rope_theta"]
        dim = config.head_dim
        self._frequencies = theta ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)

    @torch.inference_mode()
    def run(self, ids: Sequence[int], places: Sequence[int]) -> torch.Tensor:
        """Compute rows at places, return the log probabilities behind each, ``[row, token]``.

        Each row sees all slots up to its place, whatever has been put there.
        """
        self.places = torch.tensor(list(places))
        self.looks = []
        given = torch.tensor([list(ids)])
        logits = self.model(given, position_ids=self.places[None], use_cache=False).logits
        return logits[0].float().log_softmax(-1)

    def encode(self, head: Sequence[int], text: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values of a text behind a head, ``[layer, head, token, dim]``."""
        stop = len(head) + len(text)
        self.run([*head, *text], range(stop))
        return self.keys[:, :, len(head) : stop].clone(), self.values[
            :, :, len(head) : stop
        ].clone()

    def put(self, states: tuple[torch.Tensor, torch.Tensor], at: int, encoded_at: int) -> None:
        """Put the states of a text to a place, its keys rotated from where it was encoded."""
        keys, values = states
        angles = self._frequencies * (at - encoded_at)
        cos, sin = angles.cos().float(), angles.sin().float()
        first, second = keys.chunk(2, -1)
        moved = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
        stop = at + keys.shape[2]
        self.keys[:, :, at:stop], self.values[:, :, at:stop] = moved, values


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    **named: Any,
) -> tuple[torch.Tensor, None]:
    held: Reference = module.reference
    places, layer = held.places, module.layer_idx
    held.keys[layer][:, places], held.values[layer][:, places] = key[0], value[0]
    top = int(places.max()) + 1
    groups = query.shape[1] // key.shape[1]
    keys = held.keys[layer][:, :top].repeat_interleave(groups, 0)
    values = held.values[layer][:, :top].repeat_interleave(groups, 0)
    products = query[0] @ keys.transpose(-1, -2) * (scaling or query.shape[-1] ** -0.5)
    products.masked_fill_(torch.arange(top) > places[:, None], -torch.inf)
    looks = products.softmax(-1)
    held.looks.append(looks)
    return (looks @ values).transpose(0, 1)[None].contiguous(), None
