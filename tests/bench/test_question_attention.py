"""Attention of a question to reused texts is that of the model, and of the engine."""

from __future__ import annotations

import copy
from typing import Any

import pytest

pytest.importorskip("transformers")

import tiny_chat
import torch
from fake_runner import tokenizer

from bench.baselines import chunk_reuse
from bench.baselines.chunk_reuse import chosen, question_attention
from rag_accel.engines.llm.local.batching.rows import SequenceRows
from rag_accel.engines.llm.local.model.loading import load
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.fidelity.forced import ForcedEngine
from rag_accel.fidelity.prompts import TextPrompt
from rag_accel.kv.segments import SegmentedPrompt
from rag_accel.kv.selection import Asked, QuestionGuided

PROMPT = TextPrompt(
    (
        "The height of Mount Fuji is 3776 metres.",
        "A lane holds keys and values of one sequence.",
        "The guide said which of the documents it is.",
    ),
    "How high is it?",
)
SHARE = 0.15


def loaded() -> Any:
    return load(tiny_chat.model(), tokenizer(), context=512, pool_bytes=1 << 24)


@pytest.fixture(scope="module")
def runner() -> Any:
    return loaded().runner


@pytest.fixture(scope="module")
def prompt() -> SegmentedPrompt:
    return PROMPT.segmented(tokenizer())


@pytest.mark.parametrize("asked", ["question", "last"])
@pytest.mark.parametrize("layer", [0, 1])
def test_one_layer_is_the_choice_of_the_engine_at_that_layer(
    runner: Any, prompt: SegmentedPrompt, layer: int, asked: Asked
) -> None:
    selector = QuestionGuided(asked)
    options = LocalOptions(
        kv_reuse="fused",
        kv_recipe="alone",
        reuse_always=True,
        recompute_ratio=SHARE,
        recompute_layer=layer,
        selector=selector,
    )
    engine = ForcedEngine(loaded(), options, threads=1)
    _, theirs = engine.answer(PROMPT.generation_input(3), len(prompt.ids), [7, 8, 9])
    engine.close()
    states = chunk_reuse.encoded(runner, prompt)
    scores = question_attention(runner, prompt, states, [layer], asked)
    again = chosen(scores, prompt, SHARE, selector)
    ours = chunk_reuse.reuse(runner, prompt, states, [7, 8], again)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_attention_of_a_question_over_exact_states_is_that_of_the_model(
    runner: Any, prompt: SegmentedPrompt
) -> None:
    lane = runner.pool.take(len(prompt.ids))
    places = range(len(prompt.ids))
    runner.run([SequenceRows(lane, prompt.ids, places, places, places[-1:])])
    states = {one.ids: runner.pool.read(lane, range(one.start, one.end)) for one in prompt.chunks}
    runner.pool.free(lane)
    model = copy.deepcopy(tiny_chat.model())
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        looks = model(torch.tensor([prompt.ids]), output_attentions=True).attentions
    end = prompt.chunks[-1].end
    for layers in ([0], [1], range(runner.layers)):
        scores = question_attention(runner, prompt, states, layers)
        theirs = torch.stack([looks[layer][0].mean(0)[end:].sum(0) for layer in layers]).mean(0)
        torch.testing.assert_close(torch.tensor(scores), theirs, atol=1e-4, rtol=1e-4)


def test_no_lane_is_left(runner: Any, prompt: SegmentedPrompt) -> None:
    states = chunk_reuse.encoded(runner, prompt)
    question_attention(runner, prompt, states, [0])
    assert runner.pool.held_bytes == 0
