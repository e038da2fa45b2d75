"""A real instruct model gives here what ``generate`` gives, chats together and one by one."""

from __future__ import annotations

from functools import cache

import pytest
from fake_runner import finish, value
from real_model import chat, generated, model, tokenizer

from rag_accel.engine_api import EngineRequest, GenerationInput, Message, PrimitiveKind, WorkId
from rag_accel.engines.llm.local.engine import LocalLLMEngine
from rag_accel.engines.llm.local.model.loading import load
from rag_accel.engines.llm.local.options import LocalOptions, RunnerName


@cache
def engine(runner: RunnerName) -> LocalLLMEngine:
    options = LocalOptions(runner=runner, pool_bytes=1 << 28)
    loaded = load(model(), tokenizer(), options=options)
    assert loaded.chosen.name == runner, loaded.chosen.describe()
    return LocalLLMEngine(loaded.runner, loaded.tokenizer, eos=loaded.ends)


def answers(chats: range, tokens: int, runner: RunnerName = "torch") -> list[str]:
    """Return the answers of chats that are computed together."""
    work_items = [
        EngineRequest(
            WorkId(str(at)),
            str(at),
            PrimitiveKind.DECODING,
            GenerationInput(turns(at), max_tokens=tokens),
        )
        for at in chats
    ]
    engine(runner).submit(work_items)
    outputs = finish(engine(runner), *map(str, chats))
    return [value(outputs, str(at)).text for at in chats]


def turns(at: int) -> tuple[Message, ...]:
    return tuple(Message(role, content) for role, content in chat(at))


@pytest.mark.slow
def test_its_answer_is_right() -> None:
    assert "3776" in answers(range(1, 2), 16)[0]


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["torch", "paged"])
def test_eight_chats_together_equal_generate(runner: RunnerName) -> None:
    assert answers(range(8), 6, runner) == [generated(at, 6) for at in range(8)]


@pytest.mark.slow
def test_twenty_long_answers_equal_generate() -> None:
    assert answers(range(20), 32) == [generated(at, 32) for at in range(20)]
