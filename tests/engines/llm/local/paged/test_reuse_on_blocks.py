"""Engines reuse retrieved texts over blocks as they do over lanes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from chunk_prompts import A, B, C, answer, asked
from fake_runner import finish, tokenizer
from tiny_chat import model
from tiny_models import paged_runner_for, runner_for

from rag_accel.engine_api import GenerationOutput, StepBudget
from rag_accel.engines.llm.local.engine import LocalLLMEngine
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.engines.llm.local.paged.sequences import BLOCK
from rag_accel.kv.rotation import rotation_of
from rag_accel.kv.selection import QuestionGuided

ORDERS = ((A, B, C), (C, A, B), (B, C))


def answers(runner: Any, **options: Any) -> list[GenerationOutput]:
    """Return the answers of one engine to prompts over the same texts."""
    engine = LocalLLMEngine(runner, tokenizer(), options=LocalOptions(reuse_always=True, **options))
    try:
        return [answer(engine, asked(str(at), *texts)) for at, texts in enumerate(ORDERS)]
    finally:
        engine.close()


def on_blocks(**options: Any) -> list[GenerationOutput]:
    scored = LocalOptions(**options).scored_layer(model().config.num_hidden_layers)
    return answers(paged_runner_for(model(), scored), **options)


def on_lanes(**options: Any) -> list[GenerationOutput]:
    runner = runner_for(model())
    runner.pool.frequencies = rotation_of(model())
    return answers(runner, **options)


def ways() -> Iterator[dict[str, Any]]:
    yield {"kv_reuse": "full"}
    for ratio in (0.15, 0.5):
        yield {"kv_reuse": "fused", "recompute_ratio": ratio}


@pytest.mark.parametrize("options", list(ways()), ids=["full", "fused", "half"])
def test_answers_are_those_of_torch(options: dict[str, Any]) -> None:
    found, expected = on_blocks(**options), on_lanes(**options)
    assert [(one.text, one.use) for one in found] == [(one.text, one.use) for one in expected]


def test_all_tokens_computed_again_give_the_whole_prompts_answers() -> None:
    again = on_blocks(kv_reuse="fused", recompute_ratio=1.0)
    assert [one.text for one in again] == [one.text for one in on_lanes()]


def test_tokens_are_computed_again_by_whole_blocks_where_a_selector_says_so() -> None:
    by_blocks = QuestionGuided(block=BLOCK)
    found = on_blocks(kv_reuse="fused", recompute_ratio=0.7, selector=by_blocks)
    single = on_blocks(kv_reuse="fused", recompute_ratio=0.7)
    assert [one.use for one in found] != [one.use for one in single]
    assert all(one.use is not None and one.use.recomputed >= BLOCK // 2 for one in found)


def test_prompts_with_the_same_texts_share_their_blocks() -> None:
    said = "Lane {} holds what {} sequences of tokens have in common, and {} of them say so. "
    texts = [said.format(at, at + 1, at + 2) * 3 for at in range(10)]
    runner = paged_runner_for(model(), None)
    options = LocalOptions(kv_reuse="full", reuse_always=True, prefix_lanes=0)
    engine = LocalLLMEngine(runner, tokenizer(), eos=(), options=options)
    try:
        engine.submit([asked("alone", *texts, question="\n\nWhich?")])
        finish(engine, "alone")
        held: list[int] = []
        for count in (1, 8):
            ids = [f"{count}-{at}" for at in range(count)]
            questions = [f"\n\nWhich {at}?" for at in range(count)]
            works = [
                asked(id, *texts, question=each) for id, each in zip(ids, questions, strict=True)
            ]
            engine.submit(works[:1])
            engine.step(StepBudget(0.0))
            engine.submit(works[1:])
            engine.step(StepBudget(0.0))
            held.append(runner.pool.held_bytes)
            finish(engine, *ids)
    finally:
        engine.close()
    assert held[1] <= 1.3 * held[0]
