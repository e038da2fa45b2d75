"""Retrieved texts are encoded once, and used wherever they stand in later prompts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from chunk_prompts import ALL, QUESTION, SYSTEM, A, B, C, answer, asked, make, tokens
from fake_runner import FakeRunner, error, finish, tokenizer, value
from tiny_chat import model

from rag_accel.engine_api import (
    EngineRequest,
    GenerationInput,
    Message,
    StepBudget,
    WorkId,
)
from rag_accel.engines.llm.local.engine import LocalLLMEngine
from rag_accel.engines.llm.local.model.loading import load
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.errors import EngineError


@pytest.fixture
def runner() -> FakeRunner:
    return FakeRunner()


@pytest.fixture
def engine(runner: FakeRunner) -> LocalLLMEngine:
    return make(runner)


def test_texts_in_another_order_are_not_computed_again(
    engine: LocalLLMEngine, runner: FakeRunner
) -> None:
    first = answer(engine, asked("one", A, B, C))
    before = runner.computed
    second = answer(engine, asked("two", C, A, B))
    assert first.use is not None
    assert first.use.from_chunks == 0
    assert second.use is not None
    assert second.use.from_chunks == ALL
    computed = runner.computed - before - second.completion_tokens + 1
    assert computed == second.use.computed
    assert computed == second.prompt_tokens - second.use.from_prefix - ALL


def test_a_head_computed_for_this_prompts_texts_is_not_left_by_an_earlier_one(
    engine: LocalLLMEngine,
) -> None:
    first, second = answer(engine, asked("one", A, B)), answer(engine, asked("two", C, A))
    assert first.use is not None
    assert second.use is not None
    assert first.use.from_prefix == 0
    assert second.use.from_prefix > 0


def test_a_text_twice_in_a_prompt_is_encoded_once(engine: LocalLLMEngine) -> None:
    done = answer(engine, asked("one", A, B, A))
    assert done.use is not None
    assert done.use.from_chunks == tokens(A)


def test_an_edited_text_is_encoded_anew(engine: LocalLLMEngine) -> None:
    answer(engine, asked("one", C, A, B))
    done = answer(engine, asked("two", C, A.replace("3776", "3777"), B))
    assert done.use is not None
    assert done.use.from_chunks == tokens(C) + tokens(B)


def test_tenants_share_no_texts(engine: LocalLLMEngine) -> None:
    answer(engine, asked("one", A, B, namespace="one"))
    done = answer(engine, asked("two", A, B, namespace="two"))
    assert done.use is not None
    assert done.use.from_chunks == 0


def test_another_head_has_its_own_texts(engine: LocalLLMEngine) -> None:
    answer(engine, asked("one", A, B))
    work = asked("two", A, B)
    messages = (Message("system", "Be brief."), *work.payload.messages[1:])
    payload = GenerationInput(messages, max_tokens=6, chunk_spans=work.payload.chunk_spans)
    engine.submit([EngineRequest(work.id, "two", work.kind, payload)])
    done = value(finish(engine, "two"), "two")
    assert done.use.from_chunks == 0


@pytest.mark.parametrize("steps", range(5))
def test_a_cancelled_prompt_frees_what_it_had_begun(runner: FakeRunner, steps: int) -> None:
    engine = make(runner, step_tokens=20, prefix_lanes=0, chunk_bytes=0)
    engine.submit([asked("one", A, B, C)])
    for _ in range(steps):
        engine.interrupt()
        engine.step(StepBudget())
    engine.cancel([WorkId("one")])
    assert engine.held_bytes == 0


def test_a_text_beyond_the_bytes_is_kept_at_its_second_prompt(runner: FakeRunner) -> None:
    engine = make(runner, chunk_bytes=tokens(B) + tokens(C))
    first, second, third = [
        answer(engine, asked(name, *texts)).use
        for name, texts in (("one", (A, B, C)), ("two", (C, B, A)), ("three", (C, A)))
    ]
    assert first is not None
    assert second is not None
    assert third is not None
    assert (first.from_chunks, second.from_chunks) == (0, tokens(A) + tokens(B))
    assert third.from_chunks == tokens(C) + tokens(A)  # B went: A was used after it


def test_exactly_nothing_is_kept(runner: FakeRunner) -> None:
    engine = make(runner, kv_reuse="exact", prefix_lanes=0)
    answer(engine, asked("one", A, B))
    assert engine.held_bytes == 0
    done = answer(engine, asked("two", B, A))
    assert done.use is not None
    assert done.use.from_chunks == 0


LONGER = "\n\nHow high is it? Say it."


def test_a_prompt_begins_with_what_another_has_left_behind_the_same_texts(
    engine: LocalLLMEngine, runner: FakeRunner
) -> None:
    answer(engine, asked("one", A, B))
    before = runner.computed
    done = answer(engine, asked("two", A, B, question=LONGER))
    assert done.use is not None
    assert runner.computed - before == done.use.computed + done.completion_tokens - 1
    assert done.use.from_prefix > tokens(SYSTEM) + 20
    assert done.use.from_chunks == done.use.approximate == tokens(A) + tokens(B)


@pytest.mark.parametrize(
    ("options", "texts"),
    [({}, (B, A)), ({"kv_reuse": "fused", "reuse_always": True}, (A, B))],
)
def test_behind_others_or_tokens_computed_again_there_is_nothing_to_begin_with(
    runner: FakeRunner, options: dict[str, Any], texts: tuple[str, ...]
) -> None:
    engine = make(runner, **options)
    answer(engine, asked("one", A, B))
    done = answer(engine, asked("two", *texts, question=LONGER))
    assert done.use is not None
    assert done.use.from_prefix < tokens(SYSTEM) + 20


def test_nothing_begins_with_what_has_seen_a_forgotten_text(engine: LocalLLMEngine) -> None:
    answer(engine, asked("one", A, B))
    engine.forget([B])
    done = answer(engine, asked("two", A, B))
    assert done.use is not None
    assert done.use.from_prefix < tokens(SYSTEM) + 20
    assert done.use.from_chunks == tokens(A)


def test_a_text_that_does_not_fit_the_pool_ends_its_prompts_only() -> None:
    engine = make(FakeRunner(pool_size=100), prefix_lanes=0)
    engine.submit([asked("long", A * 4), asked("short", B)])
    outputs = finish(engine, "long", "short")
    assert isinstance(error(outputs, "long"), EngineError)
    assert value(outputs, "short").completion_tokens == 6


# Numerics, on a tiny model of random weights


def real_engine(kv_reuse: str) -> LocalLLMEngine:
    loaded = load(model(), tokenizer(), pool_bytes=1 << 24)
    options = LocalOptions(kv_reuse=kv_reuse)  # type: ignore[arg-type]
    return LocalLLMEngine(loaded.runner, loaded.tokenizer, options=options)


def test_a_text_right_behind_the_head_gives_the_text_of_computing_all() -> None:
    work = asked("one", A, question=QUESTION)
    reusing = real_engine("full")
    answer(reusing, work)
    again = answer(reusing, work)
    assert again.use is not None
    assert again.use.from_chunks == tokens(A)
    assert again.text == answer(real_engine("exact"), work).text


def test_moved_keys_are_those_of_their_new_place() -> None:
    loaded = load(model(), tokenizer(), pool_bytes=1 << 24)
    pool = loaded.runner.pool
    ids = tokenizer()(A + B, add_special_tokens=False)["input_ids"]
    first, second = (pool.take(len(ids) + 60) for _ in range(2))
    assert first is not None
    assert second is not None
    from rag_accel.engines.llm.local.batching.rows import SequenceRows

    loaded.runner.run([SequenceRows(first, ids, range(len(ids)), range(len(ids)))])
    places = range(50, 50 + len(ids))
    loaded.runner.run([SequenceRows(second, ids, places, places)])
    direct = pool.keys[0, second, :, 50 : 50 + len(ids)].clone()
    pool.write(second, 50, pool.read(first, range(len(ids))))
    moved = pool.keys[0, second, :, 50 : 50 + len(ids)]
    torch.testing.assert_close(moved, direct, atol=2e-5, rtol=0)
