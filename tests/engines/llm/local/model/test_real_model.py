"""A real instruct model gives here what ``generate`` gives, chats together and one by one."""

from __future__ import annotations

from functools import cache

import pytest
from fake_runner import finish, value
from real_model import chat, generated, model, tokenizer

from rag_accel.engine_api import EngineRequest, GenerationInput, Message, PrimitiveKind, WorkId
from rag_accel.engines.llm.local.engine import LocalLLMEngine
from rag_accel.engines.llm.local.model.loading import load


@cache
def engine() -> LocalLLMEngine:
    loaded = load(model(), tokenizer(), pool_bytes=1 << 28)
    return LocalLLMEngine(loaded.runner, loaded.tokenizer, eos=loaded.ends)


def answers(chats: range, tokens: int) -> list[str]:
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
    engine().submit(work_items)
    outputs = finish(engine(), *map(str, chats))
    return [value(outputs, str(at)).text for at in chats]


def turns(at: int) -> tuple[Message, ...]:
    return tuple(Message(role, content) for role, content in chat(at))


@pytest.mark.slow
def test_its_answer_is_right() -> None:
    assert "3776" in answers(range(1, 2), 16)[0]


@pytest.mark.slow  # on tiny models it runs always, see test_greedy_text.py
def test_chats_together_equal_generate() -> None:
    assert answers(range(3), 8) == [generated(at, 8) for at in range(3)]


@pytest.mark.slow
def test_twenty_long_answers_equal_generate() -> None:
    assert answers(range(20), 32) == [generated(at, 32) for at in range(20)]
