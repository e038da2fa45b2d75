"""LlamaIndex objects behind HTTP: engines, chats without a shared memory, workflows, embeddings."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llama_index.core import Document, MockEmbedding, VectorStoreIndex
from llama_index.core.base.llms.types import CompletionResponse, LLMMetadata
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.llms import CustomLLM
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.memory import ChatMemoryBuffer, Memory, VectorMemory
from serving_kit import client_of, serving_app
from workflows import Context, Workflow, step
from workflows.events import Event, StartEvent, StopEvent

from llama_index_rag_accel.served import serve_object
from rag_accel.accelerator import Accelerator
from rag_accel.errors import ConfigError
from rag_accel.serving.served import ServingTerms


class PromptLLM(CustomLLM):
    """A model that answers with its prompt, a word at a time."""

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(context_window=4096, num_output=64)

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text=prompt)

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        said = ""
        for word in prompt.split():
            said += f"{word} "
            yield CompletionResponse(text=said, delta=f"{word} ")


class Progress(Event):
    """A step of the workflow."""


class Doubling(Workflow):
    """A workflow with an event and a result of two fields."""

    @step
    async def run_it(self, ctx: Context, ev: StartEvent) -> StopEvent:
        ctx.write_event_to_stream(Progress())
        return StopEvent(result={"twice": ev.text * 2})


def index() -> VectorStoreIndex:
    return VectorStoreIndex.from_documents(
        [Document(text="The bridge opened in 1932.")], embed_model=MockEmbedding(8)
    )


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


async def test_a_query_engine_answers_and_streams() -> None:
    with Accelerator() as accelerator:
        for streams in (False, True):
            engine = index().as_query_engine(llm=PromptLLM(), streaming=streams)
            served = serve_object(engine, ServingTerms(accelerator))
            async with client_of(serving_app(served)) as client:
                answer = (await client.post("/invoke", json={"input": "When?"})).json()["output"]
                assert "opened in 1932" in answer
                assert "When?" in answer
                events = (await client.post("/stream", json={"input": "When?"})).text.split("\n\n")
                texts = [json.loads(event[6:])["text"] for event in events[:-2]]
                assert (len(texts) > 1) is streams
                assert "".join(texts).split() == answer.split()


@pytest.mark.parametrize("memory", [ChatMemoryBuffer, Memory])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_sees_its_own_messages_alone(memory: Any, stream: bool) -> None:
    engine = SimpleChatEngine.from_defaults(
        llm=PromptLLM(), memory=memory.from_defaults(token_limit=4000)
    )
    with Accelerator() as accelerator:
        served = serve_object(engine, ServingTerms(accelerator))
        async with client_of(serving_app(served)) as client:
            for name in ("first", "second"):
                messages = [user(f"{name} asks"), {"role": "assistant", "content": "yes?"}]
                body = {"model": "bot", "messages": [*messages, user("this")], "stream": stream}
                said = (await client.post("/v1/chat/completions", json=body)).text
                assert name in said
                assert ("first" in said) == (name == "first")
                assert "yes?" in said
    if memory is ChatMemoryBuffer:  # the other one would open a database to tell
        assert engine.chat_history == []


def test_a_chat_with_a_memory_that_clients_would_share_is_refused() -> None:
    memory = VectorMemory.from_defaults(embed_model=MockEmbedding(8))
    engine = SimpleChatEngine.from_defaults(llm=PromptLLM(), memory=memory)
    with Accelerator() as accelerator, pytest.raises(ConfigError, match="shared by all clients"):
        serve_object(engine, ServingTerms(accelerator))


async def test_a_workflow_takes_its_declared_inputs() -> None:
    with Accelerator() as accelerator:
        with pytest.raises(ConfigError, match="--input"):
            serve_object(Doubling(), ServingTerms(accelerator))
        served = serve_object(Doubling(), ServingTerms(accelerator, ("text",)))
        async with client_of(serving_app(served)) as client:
            answer = await client.post("/invoke", json={"text": "ab"})
            assert answer.json() == {"output": {"twice": "abab"}}
            events = (await client.post("/stream", json={"text": "ab"})).text
            assert '{"step": "Progress"}' in events
            refused = await client.post("/invoke", json={"text": "a", "ctx": {}})
            assert refused.status_code == 422
            assert "valid: text" in refused.json()["error"]["message"]


async def test_an_embedding_model_embeds() -> None:
    with Accelerator() as accelerator:
        served = serve_object(MockEmbedding(3), ServingTerms(accelerator))
        async with client_of(serving_app(served)) as client:
            body = {"model": "bot", "input": ["a", "b"]}
            data = (await client.post("/v1/embeddings", json=body)).json()["data"]
            assert [row["embedding"] for row in data] == [[0.5, 0.5, 0.5]] * 2


def test_an_object_of_another_framework_is_left_to_others() -> None:
    with Accelerator() as accelerator:
        assert serve_object(object(), ServingTerms(accelerator)) is None
