"""Tiny random models of each supported family, and what their own forward computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rag_accel.engines.llm.local.batching.rows import Runner, SequenceRows
from rag_accel.engines.llm.local.model.families import ModelShape
from rag_accel.engines.llm.local.model.pool import TensorPool
from rag_accel.engines.llm.local.model.runner import PackedRunner
from rag_accel.engines.llm.local.model.shared_weights import packed_copy
from rag_accel.engines.llm.local.paged.making import Compilation, trace_spec
from rag_accel.engines.llm.local.paged.runner import PagedRunner
from rag_accel.engines.llm.local.paged.topology import traced

VOCABULARY = 256
WINDOW = 16
#: Weights so large that it matters to the logits where a row looks.
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
MIXED = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
MODELS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "llama3": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=LLAMA3)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=WINDOW)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "qwen2_mixed": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES, **MIXED)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=32, tie_word_embeddings=True)),
}


def fresh(name: str, dtype: torch.dtype = torch.float32) -> Any:
    """Return a model of a family, the same in every run, that a test may change."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return MODELS[name]().to(dtype).eval()


@cache
def shared(name: str, dtype: torch.dtype = torch.float32) -> Any:
    """Return a model that tests share and leave as it is."""
    return fresh(name, dtype)


def ids_of(length: int, seed: int) -> list[int]:
    """Return a seeded prompt."""
    return Random(seed).choices(range(VOCABULARY), k=length)


@torch.inference_mode()
def own_logits(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """Return the logits ``[token, vocabulary]`` of a model's own forward."""
    return model(torch.tensor([list(ids)], device=model.device), use_cache=False).logits[0].float()


def runner_for(model: Any, limit_bytes: int = 1 << 26) -> PackedRunner:
    """Return a runner of a copy that shares the model's weights."""
    shape = ModelShape.of(model.config)
    pool = TensorPool(
        layers=shape.layers,
        heads=shape.heads,
        dim=shape.dim,
        context=shape.context,
        limit_bytes=limit_bytes,
        dtype=model.dtype,
        device=model.device,
    )
    return PackedRunner(packed_copy(model), pool, shape.vocabulary)


def paged_runner_for(model: Any, probed: int | None = None) -> PagedRunner:
    """Return a runner on paged attention over the model's weights; traced once a machine."""
    return Compilation(model, traced_for(model), threads=2, probed=probed).runner(1 << 26)


def traced_for(model: Any) -> bytes:
    """Return a model's trace; traced once a machine."""
    pytest.importorskip("openvino")
    return traced(trace_spec(model))


def part(lane: int | None, ids: Sequence[int], start: int, end: int) -> SequenceRows:
    """Return the rows of a sequence from a token up to another, all asked for."""
    assert lane is not None
    span = range(start, end)
    return SequenceRows(lane, list(ids[start:end]), span, span, range(end - start))


def packed_logits(
    runner: Runner, prompts: Sequence[Sequence[int]], random: Random
) -> list[torch.Tensor]:
    """Return each prompt's logits, computed in chunks drawn at random, together with others."""
    lanes = [runner.pool.take(len(ids)) for ids in prompts]
    ends = [0] * len(prompts)
    found: list[list[torch.Tensor]] = [[] for _ in prompts]
    while any(end < len(ids) for end, ids in zip(ends, prompts, strict=True)):
        live = [i for i, ids in enumerate(prompts) if ends[i] < len(ids)]
        chosen = random.sample(live, random.randint(1, len(live)))
        sizes = [random.choice((1, 1, 3, 40)) for _ in chosen]
        rows = [
            part(lanes[i], prompts[i], ends[i], min(ends[i] + size, len(prompts[i])))
            for i, size in zip(chosen, sizes, strict=True)
        ]
        for i, piece in zip(chosen, runner.run(rows).split(list(map(len, rows))), strict=True):
            found[i].append(piece)
            ends[i] += len(piece)
    return [torch.cat(pieces) for pieces in found]


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with a token for each of the vocabulary's numbers."""
    words = {str(number): number for number in range(VOCABULARY)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, unk_token="0")))
