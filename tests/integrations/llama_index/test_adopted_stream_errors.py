"""A stream of an adopted HuggingFaceLLM that fails ends with its error, or says what it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("llama_index.llms.huggingface")

from fake_runner import tokenizer
from hf_callers import (
    GREEDY,
    QUESTIONS,
    TOKENS,
    end_streams,
    own_model,
    record_plain,
)
from llama_index.core.llms import ChatMessage
from llama_index.llms.huggingface import HuggingFaceLLM

from llama_index_rag_accel import accelerate
from rag_accel import Accelerator
from rag_accel.errors import DeadlineError

QUESTION = QUESTIONS[1]


@pytest.fixture(scope="module")
def model() -> Any:
    """Give a model that tests leave as it is."""
    return own_model()


def llm_of(model: Any, **settings: Any) -> HuggingFaceLLM:
    """Return an LLM over a model."""
    return HuggingFaceLLM(
        model=model,
        tokenizer=tokenizer(),
        max_new_tokens=TOKENS,
        generate_kwargs={**GREEDY, **settings},
        context_window=2048,
    )


async def _astreamed(stream: Any) -> list[Any]:
    return [one async for one in await stream]


CHAT = [ChatMessage(content=QUESTION)]
ENTRIES: dict[str, Callable[[Any], Any]] = {
    "stream_complete": lambda llm: list(llm.stream_complete(QUESTION)),
    "stream_chat": lambda llm: list(llm.stream_chat(CHAT)),
    "astream_complete": lambda llm: asyncio.run(_astreamed(llm.astream_complete(QUESTION))),
    "astream_chat": lambda llm: asyncio.run(_astreamed(llm.astream_chat(CHAT))),
}


@pytest.mark.parametrize("after", [0, 2], ids=["before the first token", "behind some"])
@pytest.mark.parametrize("entry", ENTRIES)
def test_an_error_of_the_callers_ends_a_stream_in_its_reader(
    entry: str, after: int, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = record_plain(monkeypatch)
    end_streams(monkeypatch, DeadlineError, after)
    with Accelerator() as accelerator:
        fast = accelerate(llm_of(model), accelerator=accelerator)
        with pytest.raises(DeadlineError, match="no more"):
            ENTRIES[entry](fast)
    assert plain == []
