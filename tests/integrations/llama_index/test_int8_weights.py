"""Answers by int8 weights say so in LlamaIndex."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from fake_runner import tokenizer
from int8_kit import give_folders
from llama_index.core.llms import ChatMessage
from tiny_chat import TOKENS, model

from llama_index_rag_accel import RagAccelLLM
from rag_accel import Accelerator

pytestmark = pytest.mark.filterwarnings("ignore::rag_accel.UncheckedWeightsWarning")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for weights and verdicts."""
    give_folders(tmp_path / "cache", monkeypatch)
    return tmp_path / "cache"


def llm(accelerator: Accelerator, **bounds: Any) -> RagAccelLLM:
    return RagAccelLLM(
        model(),
        tokenizer=tokenizer(),
        max_tokens=TOKENS,
        pool_bytes=1 << 24,
        accelerator=accelerator,
        **bounds,
    )


def test_an_answer_says_what_computed_it(accelerator: Accelerator) -> None:
    rounded = llm(accelerator, weights="int8")
    found = rounded.complete("Well?")
    assert found.additional_kwargs["weights"] == "int8"
    assert found.additional_kwargs["exact"] is False
    assert found.raw is not None
    assert found.raw.weights == "int8"
    chat = rounded.chat([ChatMessage(role="user", content="Well?")])
    assert chat.additional_kwargs["weights"] == "int8"
    *_, last = rounded.stream_complete("Well?")
    assert last.additional_kwargs["exact"] is False
