"""A model whose weights say a script, for programs that hold a model of their own."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from fake_runner import tokenizer
from hf_callers import own_model
from tokenizers import AddedToken

#: What a prompt ends with: the last turn tells which answer the model begins.
CALL, ANSWER = "<|call|>", "<|answer|>"
#: What the turn that holds a tool's result begins with.
OBSERVATION = "Observation:"
_TEMPLATE = (
    "{% for m in messages %}<|turn|>{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}"
    f"{{{{ '{ANSWER}' if messages[-1].content.startswith('{OBSERVATION}') else '{CALL}' }}}}"
)
_PEAK = 20.0


def scripted_weights(script: Mapping[str, Sequence[str]]) -> tuple[Any, Any]:
    """Return a model and its tokenizer; each next token is determined by the one before it.

    Args:
        script: of ``CALL`` and ``ANSWER``, the pieces of an answer, each a token of its own.
    """
    words = copy.deepcopy(tokenizer())
    words.pad_token, words.chat_template = "<s>", _TEMPLATE
    words.add_tokens([AddedToken(marker, special=True) for marker in script], special_tokens=True)
    pieces = [piece for answer in script.values() for piece in answer]
    words.add_tokens([AddedToken(piece, normalized=False) for piece in pieces])
    made = own_model()
    made.resize_token_embeddings(len(words), mean_resizing=False)
    made.eval()  # which its new embedding is not
    made.generation_config.eos_token_id = words.eos_token_id
    head, embedding = made.lm_head.weight, made.model.embed_tokens.weight
    with torch.no_grad():
        for layer in made.model.layers:  # all that is seen is the token itself
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        embedding.zero_()
        head.zero_()
        for marker, answer in script.items():
            ids = words.convert_tokens_to_ids([marker, *answer, words.eos_token])
            for one, following in pairwise(ids):
                unit = int((embedding != 0).sum())  # each has a direction of its own
                embedding[one, unit] = 1.0
                head[following, unit] = _PEAK
    return made, words
