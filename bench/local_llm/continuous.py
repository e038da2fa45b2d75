"""transformers' own continuous batching, with a cache of the size that prompts need."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from rag_accel.errors import EngineError

#: Tokens of a page of its cache.
PAGE = 256


def generate_together(
    causal: Any, ids: Sequence[list[int]], tokens: int, pad: int | None
) -> list[list[int]]:
    """Return the greedy answers to prompts; the manager and its cache stay with the model.

    Made in each call, as is its default, they take 15 seconds of it: the cache takes most of the
    memory there is. This one has a page a prompt more than the longest answers would fill.
    ``destroy_cached_continuous_batching_manager`` of the model frees both.

    Args:
        causal: a model of transformers.
        ids: of each prompt.
        tokens: most of an answer.
        pad: the token that pads.

    Raises:
        EngineError: a prompt has no answer.
    """
    configuration: Any = importlib.import_module("transformers.generation.configuration_utils")
    greedy = configuration.GenerationConfig(
        max_new_tokens=tokens,
        do_sample=False,
        eos_token_id=causal.generation_config.eos_token_id,
        pad_token_id=pad,
    )
    pages = sum((len(each) + tokens) // PAGE + 2 for each in ids)
    found = causal.generate_batch(
        list(ids),
        generation_config=greedy,
        continuous_batching_config=configuration.ContinuousBatchingConfig(
            num_blocks=pages, page_size=PAGE
        ),
        persistent_manager=True,
    )
    if len(found) != len(ids) or any(one.error for one in found.values()):
        raise EngineError(
            "prompts without an answer", where="generate_batch", found=[*found.values()]
        )
    return [list(one.generated_tokens) for one in found.values()]
