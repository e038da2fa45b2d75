"""LlamaIndex programs do what they do plainly, and the scheduler hears of each leaf call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from idle_accelerators import soon_idle
from li_programs import (
    CHAT_ENGINES,
    QUERY_ENGINES,
    EchoLLM,
    Parts,
    run_in_loop,
    shown,
    text_of,
    wait_for,
)
from llama_index.core.base.llms.types import CompletionResponse
from llama_index.core.base.response.schema import StreamingResponse
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.query_engine import CustomQueryEngine

from llama_index_rag_accel import accelerate
from rag_accel import Accelerator
from rag_accel.accelerator import current_request

QUESTION = "When was the bridge opened?"


def items(accelerator: Accelerator, name: str) -> int:
    """Return how many calls of a class's objects the scheduler has heard of."""
    engines = accelerator.metrics.snapshot()["engines"]
    return sum(engine["items"] for key, engine in engines.items() if key.endswith(name))


@pytest.mark.parametrize("make", QUERY_ENGINES.values(), ids=QUERY_ENGINES)
@pytest.mark.parametrize("way", ["query", "aquery"])
def test_an_accelerated_query_engine_answers_as_the_plain_one(
    make: Callable[[Parts], Any], way: str, accelerator: Accelerator
) -> None:
    def ask(engine: Any) -> Any:
        result = getattr(engine, way)(QUESTION)
        return run_in_loop(result) if asyncio.iscoroutine(result) else result

    parts, bare = Parts(), make(Parts())
    plain = shown(lambda: ask(bare))
    engine = make(parts)
    fast = accelerate(engine, accelerator=accelerator)
    assert isinstance(fast, type(engine))
    assert shown(lambda: ask(fast)) == plain
    assert items(accelerator, "EchoLLM") == parts.llm.calls


@pytest.mark.parametrize("make", CHAT_ENGINES.values(), ids=CHAT_ENGINES)
@pytest.mark.parametrize("way", ["chat", "stream_chat"])
def test_a_chat_engine_remembers_as_the_plain_one(
    make: Callable[[Parts], Any], way: str, accelerator: Accelerator
) -> None:
    plain, fast = make(Parts()), accelerate(make(Parts()), accelerator=accelerator)
    for turn in (QUESTION, "And the ferry?"):
        expected, found = (text_of(getattr(one, way)(turn)) for one in (plain, fast))
        assert found == expected
    assert [(one.role, one.content) for one in fast.chat_history] == [
        (one.role, one.content) for one in plain.chat_history
    ]


def test_a_stream_holds_its_call_until_it_ends(accelerator: Accelerator) -> None:
    parts = Parts()
    plain = text_of(Parts().engine(streaming=True).query(QUESTION))
    fast = accelerate(parts.engine(streaming=True), accelerator=accelerator)
    stream = fast.query(QUESTION).response_gen
    words = [next(stream)]
    assert items(accelerator, "EchoLLM") == 0
    words += stream
    assert "".join(words) == plain
    assert items(accelerator, "EchoLLM") == 1


class RunsSeen(EchoLLM):
    """A model that notes which run each of its tokens belongs to, and whether that is over."""

    seen: list[Any] = []

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        def chunks() -> Iterator[CompletionResponse]:
            for text in ("a ", "b "):
                run = current_request.get()
                self.seen.append((run, run is None or run.has_ended))
                yield CompletionResponse(text=text, delta=text)

        return chunks()


@pytest.mark.parametrize("name", CHAT_ENGINES)
def test_a_chat_engines_request_lasts_until_its_stream_ends(
    name: str, accelerator: Accelerator
) -> None:
    model = RunsSeen(seen=[])
    fast = accelerate(CHAT_ENGINES[name](Parts(llm=model)), accelerator=accelerator)
    assert text_of(fast.stream_chat(QUESTION)) == "a b "
    runs, are_over = zip(*model.seen, strict=True)
    assert are_over == (False, False)
    assert len(set(runs)) == 1
    assert wait_for(lambda: runs[0].has_ended)


@pytest.mark.parametrize("name", CHAT_ENGINES)
async def test_an_async_chats_request_lasts_until_its_stream_ends(
    name: str, accelerator: Accelerator
) -> None:
    model = RunsSeen(seen=[])
    fast = accelerate(CHAT_ENGINES[name](Parts(llm=model)), accelerator=accelerator)
    response = await fast.astream_chat(QUESTION)
    assert "".join([token async for token in response.async_response_gen()]) == "a b "
    runs, are_over = zip(*model.seen, strict=True)
    assert are_over == (False, False)
    assert len(set(runs)) == 1
    await asyncio.sleep(0)
    assert runs[0].has_ended


def test_a_response_without_a_stream_stays_without_one(accelerator: Accelerator) -> None:
    class Silent(CustomQueryEngine):
        def custom_query(self, query_str: str) -> Any:
            return StreamingResponse(response_gen=None, response_txt=None)

    fast = accelerate(Silent(), accelerator=accelerator)
    assert str(fast.query(QUESTION)) == str(Silent().query(QUESTION)) == "None"
    assert soon_idle(accelerator)
