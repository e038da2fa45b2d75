"""A tiny Llama of seeded weights, and what ``generate`` makes of a question to it."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from fake_runner import prompt_ids, tokenizer
from tiny_models import LLAMA3, SIZES
from transformers import LlamaConfig, LlamaForCausalLM

TOKENS = 12
#: To be the documents of a prompt.
TEXTS = (
    "The height of Mount Fuji is 3776 metres, said the guide to those who came along.",
    "A crane lifts loads by a rope over a pulley, and lets them down by the same rope.",
    "The filter of the pump is cleaned every month, or when the water no longer comes.",
)


@cache
def model() -> Any:
    """Return the model; who changes it takes a copy."""
    sizes = {**SIZES, "vocab_size": len(tokenizer()), "eos_token_id": 1, "bos_token_id": 0}
    sizes["max_position_embeddings"] = 2048
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM(LlamaConfig(**sizes, rope_parameters=LLAMA3)).eval()


@cache
def generated(question: str) -> str:
    """Return what the model makes of a question."""
    return generated_by(model(), question)


def generated_by(model: Any, question: str) -> str:
    """Return what a model makes of a question, greedily."""
    ids = torch.tensor([prompt_ids(question)])
    made = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=TOKENS,
        do_sample=False,
        pad_token_id=0,
    )
    return tokenizer().decode(made[0, ids.shape[1] :], skip_special_tokens=True)
