"""CacheBlend as it is timed chooses and computes what its definition says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("transformers")

import tiny_chat
import torch
from fake_runner import tokenizer

from bench.baselines import chunk_reuse
from bench.baselines.cacheblend import CacheBlend
from rag_accel.engines.llm.local.model.loading import load
from rag_accel.errors import ConfigError
from rag_accel.fidelity.prompts import TextPrompt
from rag_accel.kv.segments import SegmentedPrompt

TEXTS = (
    "The height of Mount Fuji is 3776 metres.",
    "A lane holds keys and values of one sequence.",
    "The guide said which of the documents it is.",
)
PROMPT = TextPrompt(TEXTS, "How high is it?")


@pytest.fixture(scope="module")
def runner() -> Any:
    return load(tiny_chat.model(), tokenizer(), context=512, pool_bytes=1 << 24).runner


@pytest.fixture(scope="module")
def prompt() -> SegmentedPrompt:
    return PROMPT.segmented(tokenizer())


def plain(ids: Any) -> torch.Tensor:
    with torch.inference_mode():
        return tiny_chat.model()(torch.tensor([ids])).logits[0, -1:].float()


def test_all_tokens_computed_again_are_full_attention(runner: Any, prompt: SegmentedPrompt) -> None:
    found = CacheBlend(tiny_chat.model(), runner, 1.0).prefill(prompt)
    torch.testing.assert_close(found, plain(prompt.ids), atol=1e-4, rtol=1e-4)


def test_no_token_computed_again_is_full_reuse(runner: Any, prompt: SegmentedPrompt) -> None:
    found = CacheBlend(tiny_chat.model(), runner, 0.0).prefill(prompt)
    states = chunk_reuse.encoded(runner, prompt)
    torch.testing.assert_close(
        found, chunk_reuse.reuse(runner, prompt, states), atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_chosen_are_the_tokens_that_a_whole_prefill_shows_to_deviate_most(
    runner: Any, prompt: SegmentedPrompt, share: float
) -> None:
    blend = CacheBlend(tiny_chat.model(), runner, share)
    found = blend.prefill(prompt)
    states = chunk_reuse.encoded(runner, prompt)
    whole = chunk_reuse.answered(runner, prompt.ids, 1).state
    assert blend.chosen == chunk_reuse.most_deviant(runner, prompt, states, share, whole)
    again = chunk_reuse.reuse(runner, prompt, states, again=blend.chosen)
    torch.testing.assert_close(found, again, atol=1e-4, rtol=1e-4)


def test_texts_are_encoded_once(
    runner: Any, prompt: SegmentedPrompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    blend = CacheBlend(tiny_chat.model(), runner, 0.15)
    blend.prefill(prompt)
    monkeypatch.setattr("bench.baselines.cacheblend.encoded", None)
    turned = TextPrompt(tuple(reversed(TEXTS)), "Which one?").segmented(tokenizer())
    found = blend.prefill(turned)
    assert len(found) == 1
    assert runner.pool.held_bytes == 0


def test_another_type_of_model_is_refused(runner: Any) -> None:
    other = SimpleNamespace(config=SimpleNamespace(model_type="qwen2"))
    with pytest.raises(ConfigError, match="another model"):
        CacheBlend(other, runner, 0.15)
