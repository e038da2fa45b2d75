"""Ways to compute a prompt of retrieved texts do what their definitions say."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")

import tiny_chat
import torch
from fake_runner import tokenizer

from bench.baselines import chunk_reuse
from bench.baselines.chunk_reuse import KeptStates, answered, encoded, reuse
from rag_accel.engines.llm.local.model.loading import load
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.fidelity.forced import ForcedEngine
from rag_accel.fidelity.prompts import TextPrompt
from rag_accel.kv.segments import SegmentedPrompt

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


def test_no_lane_is_left(runner: Any, prompt: SegmentedPrompt) -> None:
    reuse(runner, prompt, encoded(runner, prompt))
    assert runner.pool.held_bytes == 0
