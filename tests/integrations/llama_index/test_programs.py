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
    recording,
    run_in_loop,
    shown,
    text_of,
    wait_for,
)
from llama_index.core.base.llms.types import CompletionResponse
from llama_index.core.base.response.schema import StreamingResponse
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.query_engine import CustomQueryEngine

from llama_index_rag_accel import accelerate, activate
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


@pytest.mark.parametrize("make", QUERY_ENGINES.values(), ids=QUERY_ENGINES)
def test_an_activated_program_answers_as_the_plain_one(
    make: Callable[[Parts], Any], accelerator: Accelerator
) -> None:
    plain = shown(lambda: make(Parts()).query(QUESTION))
    parts = Parts()
    with activate(accelerator):
        assert shown(lambda: make(parts).query(QUESTION)) == plain
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


@pytest.mark.parametrize("num_taken", [0, 1])
def test_a_stream_that_is_left_ends_its_request(accelerator: Accelerator, num_taken: int) -> None:
    fast = accelerate(Parts().engine(streaming=True), accelerator=accelerator)
    response = fast.query(QUESTION)
    for _ in range(num_taken):
        next(response.response_gen)
    del response
    assert soon_idle(accelerator)
    assert items(accelerator, "EchoLLM") == num_taken  # the model is asked with the first token


def test_an_async_stream_gives_the_same_tokens(accelerator: Accelerator) -> None:
    async def tokens(engine: Any) -> list[str]:
        response = await engine.aquery(QUESTION)
        return [token async for token in response.async_response_gen()]

    expected = run_in_loop(tokens(Parts().engine(streaming=True)))
    fast = accelerate(Parts().engine(streaming=True), accelerator=accelerator)
    assert run_in_loop(tokens(fast)) == expected
    assert items(accelerator, "EchoLLM") == 1


def test_a_response_without_a_stream_stays_without_one(accelerator: Accelerator) -> None:
    class Silent(CustomQueryEngine):
        def custom_query(self, query_str: str) -> Any:
            return StreamingResponse(response_gen=None, response_txt=None)

    fast = accelerate(Silent(), accelerator=accelerator)
    assert str(fast.query(QUESTION)) == str(Silent().query(QUESTION)) == "None"
    assert soon_idle(accelerator)


def test_a_class_made_while_patched_has_the_spans_of_its_own(accelerator: Accelerator) -> None:
    from li_programs import HashEmbedding

    def spans_of() -> Any:
        class Fresh(HashEmbedding):
            def _get_query_embedding(self, query: str) -> list[float]:
                return super()._get_query_embedding(query)

        with recording() as (events, spans):
            Fresh().get_query_embedding("x")
        return events, spans

    plain = spans_of()
    with activate(accelerator):
        assert spans_of() == plain
