"""CacheBlend (section 4.3 of its paper), to be timed: the least that its choice of tokens computes.

The texts' states are put to their places. The first layer is computed for every token behind the
head, and of the second its keys and values. The tokens of texts whose keys and values there differ
most from those put to their places are computed on, through all other layers, with all that is no
text. The choice holds for all layers: the paper narrows it from layer to layer, which computes
more. Attention is by our own kernel for packed rows, and the head's state is kept as ours is.

``chunk_reuse.most_deviant`` makes the same choice by its definition, from a whole prefill.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from bench.baselines import chunk_reuse
from bench.baselines.chunk_reuse import DEVIATION_LAYER, encoded, lane_of, places_of
from rag_accel.engines.llm.local.batching.rows import SequenceRows
from rag_accel.engines.llm.local.model.attention import Packed
from rag_accel.engines.llm.local.model.runner import PackedRunner
from rag_accel.engines.llm.local.model.shared_weights import packed_copy
from rag_accel.errors import ConfigError
from rag_accel.kv.entry import KeyValues
from rag_accel.kv.segments import SegmentedPrompt


class CacheBlend:
    """Prompts of one head, whose texts are encoded once.

    Args:
        model: a Llama of transformers.
        runner: of the same model; its pool is used by nothing else meanwhile.
        share: of the texts' tokens that are computed again.

    Raises ConfigError on a model of another type.
    """

    def __init__(self, model: Any, runner: PackedRunner, share: float) -> None:
        if model.config.model_type != "llama":
            valid = "llama"
            raise ConfigError("another model", found=model.config.model_type, valid=valid)
        self._causal = packed_copy(model)
        self._runner = runner
        self._share = share
        self._states: dict[tuple[int, ...], KeyValues] = {}
        self._head: tuple[tuple[int, ...], KeyValues] | None = None
        #: places of the latest prompt's texts that were computed again
        self.chosen: list[int] = []

    @torch.inference_mode()
    def prefill(self, prompt: SegmentedPrompt, last: int = 1) -> torch.Tensor:
        """Return the logits of the last rows: ``[last, vocabulary]``, float32."""
        head = self._head_state(prompt.head)
        if any(one.ids not in self._states for one in prompt.chunks):
            self._states.update(encoded(self._runner, prompt))
        with lane_of(self._runner.pool, len(prompt.ids)) as lane:
            self._runner.pool.write(lane, 0, head)
            chunk_reuse.load(self._runner.pool, lane, prompt, self._states)
            return self._computed(lane, prompt, last)

    def _computed(self, lane: int, prompt: SegmentedPrompt, last: int) -> torch.Tensor:
        model, start = self._causal.model, len(prompt.head)
        places = range(start, len(prompt.ids))
        packed, positions = self._packed(lane, prompt, places)
        hidden = model.embed_tokens(torch.tensor([prompt.ids[start:]]))
        rotation = model.rotary_emb(hidden, position_ids=positions)
        for layer in model.layers[:DEVIATION_LAYER]:
            hidden = _through(layer, hidden, rotation, packed)
        deviation = self._deviation(lane, hidden, rotation, places)
        texts = places_of(prompt)
        self.chosen = chunk_reuse.greatest(deviation, texts, self._share, start)
        again = sorted({*places} - {*texts} | {*self.chosen})
        rows = torch.tensor([place - start for place in again])
        packed, positions = self._packed(lane, prompt, again)
        hidden = hidden[:, rows]
        rotation = model.rotary_emb(hidden, position_ids=positions)
        for layer in model.layers[DEVIATION_LAYER:]:
            hidden = _through(layer, hidden, rotation, packed)
        return self._causal.lm_head(model.norm(hidden[:, -last:]))[0].float()

    def _packed(
        self, lane: int, prompt: SegmentedPrompt, places: Sequence[int]
    ) -> tuple[Packed, torch.Tensor]:
        ids = [prompt.ids[place] for place in places]
        packed = Packed(self._runner.pool, [SequenceRows(lane, ids, places, places)])
        return packed, packed.positions[None]

    def _deviation(
        self, lane: int, hidden: torch.Tensor, rotation: Any, places: Sequence[int]
    ) -> torch.Tensor:
        """Return ``[place]``: how far the second layer's keys and values are from those reused."""
        layer = self._causal.model.layers[DEVIATION_LAYER]
        rows = layer.input_layernorm(hidden)
        heads, dim = self._runner.pool.keys.shape[2], self._runner.pool.keys.shape[4]
        shape = (1, rows.shape[1], heads, dim)
        keys = layer.self_attn.k_proj(rows).view(shape).transpose(1, 2)
        values = layer.self_attn.v_proj(rows).view(shape).transpose(1, 2)
        _, keys = apply_rotary_pos_emb(keys, keys, *rotation)
        taken = slice(places[0], places[-1] + 1)
        pool = self._runner.pool
        total = torch.zeros(rows.shape[1])
        for ours, theirs in ((keys[0], pool.keys), (values[0], pool.values)):
            apart = ours.float() - theirs[DEVIATION_LAYER, lane, :, taken].float()
            total += apart.square().sum((0, 2))
        return total

    def _head_state(self, head: tuple[int, ...]) -> KeyValues:
        """Return the head's state, computed once."""
        if self._head is None or self._head[0] != head:
            self._head = head, chunk_reuse.head_state(self._runner, head)
            self._states.clear()
        return self._head[1]


def _through(layer: Any, hidden: torch.Tensor, rotation: Any, packed: Packed) -> torch.Tensor:
    return layer(hidden, position_embeddings=rotation, rag_accel_rows=packed)
