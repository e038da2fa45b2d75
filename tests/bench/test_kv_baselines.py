"""Ways to compute a prompt of retrieved texts do what their definitions say."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("transformers")

import tiny_chat
import torch
from fake_runner import tokenizer

from bench.baselines import chunk_reuse
from bench.baselines.cacheblend import CacheBlend
from bench.baselines.chunk_reuse import (
    KeptStates,
    answered,
    chosen,
    encoded,
    question_attention,
    reuse,
)
from rag_accel.engines.llm.local.batching.rows import SequenceRows
from rag_accel.engines.llm.local.model.loading import load
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.errors import ConfigError
from rag_accel.fidelity.forced import ForcedEngine
from rag_accel.fidelity.prompts import TextPrompt
from rag_accel.kv.segments import SegmentedPrompt
from rag_accel.kv.selection import Asked, QuestionGuided

SHARE = 0.15

PROMPT = TextPrompt(
    (
        "The height of Mount Fuji is 3776 metres.",
        "A lane holds keys and values of one sequence.",
        "The guide said which of the documents it is.",
    ),
    "How high is it?",
)


def loaded() -> Any:
    return load(tiny_chat.model(), tokenizer(), context=512, pool_bytes=1 << 24)


@pytest.fixture(scope="module")
def runner() -> Any:
    return loaded().runner


@pytest.fixture(scope="module")
def prompt() -> SegmentedPrompt:
    return PROMPT.segmented(tokenizer())


def plain(ids: Any, last: int = 1) -> torch.Tensor:
    with torch.inference_mode():
        return tiny_chat.model()(torch.tensor([ids])).logits[0, -last:].float()


def all_places(prompt: SegmentedPrompt) -> list[int]:
    return [place for one in prompt.chunks for place in range(one.start, one.end)]


def test_texts_are_encoded_behind_the_head_alone(runner: Any, prompt: SegmentedPrompt) -> None:
    states = encoded(runner, prompt)
    alone = TextPrompt(PROMPT.texts[2:], PROMPT.question).segmented(tokenizer())
    text = prompt.chunks[2].ids
    assert torch.equal(states[text].keys, encoded(runner, alone)[text].keys)
    assert states[text].position == len(prompt.head)


def test_new_texts_see_those_before_them_and_kept_ones_serve_where_one_of_these_is(
    runner: Any, prompt: SegmentedPrompt
) -> None:
    first, text, third = (chunk.ids for chunk in prompt.chunks)
    kept = KeptStates(runner, prompt.head)
    found = kept.of([first, text])
    whole = answered(runner, (*prompt.head, *first, *text), 1).state
    assert found[text].position == len(prompt.head) + len(first)
    torch.testing.assert_close(
        found[text].keys, whole.keys[:, :, found[text].position :], atol=1e-4, rtol=1e-4
    )
    assert kept.of([third, text, first])[text] is found[text]
    alone = kept.of([third, text])[text]
    torch.testing.assert_close(alone.keys, encoded(runner, prompt)[text].keys)
    assert kept.of([third, text])[text] is alone


def test_an_answer_ends_with_the_token_that_ends_it(runner: Any, prompt: SegmentedPrompt) -> None:
    whole = answered(runner, prompt.ids, 4)
    assert (len(whole.tokens), len(whole.logits)) == (4, 4)
    ended = answered(runner, prompt.ids, 4, ends={whole.tokens[1]})
    stop = whole.tokens.index(whole.tokens[1]) + 1
    assert ended.tokens == whole.tokens[:stop]


def test_full_reuse_is_what_the_engine_does(runner: Any, prompt: SegmentedPrompt) -> None:
    engine = ForcedEngine(loaded(), LocalOptions(kv_reuse="full", kv_recipe="alone"), threads=1)
    answer = [7, 8, 9]
    _, theirs = engine.answer(PROMPT.generation_input(4), len(prompt.ids), [*answer, 10])
    engine.close()
    ours = reuse(runner, prompt, encoded(runner, prompt), answer)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(ours[0], plain(prompt.ids)[0], atol=1e-2)


def test_every_token_computed_again_is_full_attention(runner: Any, prompt: SegmentedPrompt) -> None:
    states = encoded(runner, prompt)
    found = reuse(runner, prompt, states, (7, 8), all_places(prompt))
    torch.testing.assert_close(found, plain((*prompt.ids, 7, 8), 3), atol=1e-4, rtol=1e-4)


def test_the_first_tokens_are_of_every_text_but_the_first(prompt: SegmentedPrompt) -> None:
    _, second, third = prompt.chunks
    assert chunk_reuse.first_places(prompt, 4 / len(all_places(prompt))) == [
        *range(second.start, second.start + 2),
        *range(third.start, third.start + 2),
    ]


def test_the_most_deviant_tokens_are_those_of_the_second_layer(
    runner: Any, prompt: SegmentedPrompt
) -> None:
    states = encoded(runner, prompt)
    whole = answered(runner, prompt.ids, 1).state
    found = chunk_reuse.most_deviant(runner, prompt, states, 0.25, whole)
    places = all_places(prompt)
    with torch.inference_mode():
        cache = tiny_chat.model()(torch.tensor([prompt.ids]), use_cache=True).past_key_values
    layer = cache.layers[chunk_reuse.DEVIATION_LAYER]
    theirs = layer.values[0]
    chunks = [states[one.ids].values[chunk_reuse.DEVIATION_LAYER] for one in prompt.chunks]
    by_values = (torch.cat(chunks, 1) - theirs[:, places]).square().sum((0, 2))
    chosen = torch.tensor([place in found for place in places])
    assert len(found) == round(0.25 * len(places))
    assert by_values[chosen].mean() > by_values[~chosen].mean()


def test_a_state_gone_wrong_is_what_deviates(runner: Any, prompt: SegmentedPrompt) -> None:
    states = encoded(runner, prompt)
    wrong = prompt.chunks[1]
    values = states[wrong.ids].values
    values[chunk_reuse.DEVIATION_LAYER, :, 3] += 100
    share, whole = 1 / len(all_places(prompt)), answered(runner, prompt.ids, 1).state
    (found,) = chunk_reuse.most_deviant(runner, prompt, states, share, whole)
    assert found == wrong.start + 3


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
    states = encoded(runner, prompt)
    scores = question_attention(runner, prompt, states, [layer], asked)
    again = chosen(scores, prompt, SHARE, selector)
    ours = reuse(runner, prompt, states, [7, 8], again)
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


# CacheBlend, as it is timed


def test_all_tokens_computed_again_are_full_attention(runner: Any, prompt: SegmentedPrompt) -> None:
    found = CacheBlend(tiny_chat.model(), runner, 1.0).prefill(prompt)
    torch.testing.assert_close(found, plain(prompt.ids), atol=1e-4, rtol=1e-4)


def test_no_token_computed_again_is_full_reuse(runner: Any, prompt: SegmentedPrompt) -> None:
    found = CacheBlend(tiny_chat.model(), runner, 0.0).prefill(prompt)
    states = encoded(runner, prompt)
    torch.testing.assert_close(found, reuse(runner, prompt, states), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_chosen_are_the_tokens_that_a_whole_prefill_shows_to_deviate_most(
    runner: Any, prompt: SegmentedPrompt, share: float
) -> None:
    blend = CacheBlend(tiny_chat.model(), runner, share)
    found = blend.prefill(prompt)
    states = encoded(runner, prompt)
    whole = answered(runner, prompt.ids, 1).state
    assert blend.chosen == chunk_reuse.most_deviant(runner, prompt, states, share, whole)
    again = reuse(runner, prompt, states, again=blend.chosen)
    torch.testing.assert_close(found, again, atol=1e-4, rtol=1e-4)


def test_texts_are_encoded_once(
    runner: Any, prompt: SegmentedPrompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    blend = CacheBlend(tiny_chat.model(), runner, 0.15)
    blend.prefill(prompt)
    monkeypatch.setattr("bench.baselines.cacheblend.encoded", None)
    turned = TextPrompt(PROMPT.texts[::-1], "Which one?").segmented(tokenizer())
    found = blend.prefill(turned)
    assert len(found) == 1
    assert runner.pool.held_bytes == 0


def test_another_type_of_model_is_refused(runner: Any) -> None:
    other = SimpleNamespace(config=SimpleNamespace(model_type="qwen2"))
    with pytest.raises(ConfigError, match="another model"):
        CacheBlend(other, runner, 0.15)


def test_no_lane_is_left(runner: Any, prompt: SegmentedPrompt) -> None:
    states = encoded(runner, prompt)
    reuse(runner, prompt, states)
    question_attention(runner, prompt, states, [0])
    assert runner.pool.held_bytes == 0
