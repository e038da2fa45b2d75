"""LangChain and LangGraph objects behind HTTP."""

from __future__ import annotations

import asyncio
import json
from itertools import repeat
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import RunnableGenerator, RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from serving_kit import AsgiCall, client_of, serving_app

from langchain_rag_accel import accelerate
from langchain_rag_accel.served import serve_object
from rag_accel.accelerator import Accelerator, current_request
from rag_accel.errors import ConfigError
from rag_accel.serving.served import ServedEmbedder, ServedProgram, ServingTerms


def model() -> Any:
    said = AIMessage(
        "Built in 1932.",
        usage_metadata={"input_tokens": 7, "output_tokens": 4, "total_tokens": 11},
    )
    return GenericFakeChatModel(messages=repeat(said))


def program_of(obj: Any, accelerator: Accelerator, *inputs: str) -> ServedProgram:
    served = serve_object(obj, ServingTerms(accelerator, inputs or None))
    assert isinstance(served, ServedProgram)
    return served


def texts_of(stream: str) -> str:
    events = [block[6:] for block in stream.split("\n\n") if block.startswith("data: {")]
    return "".join(json.loads(event).get("text", "") for event in events)


async def test_a_chat_model_chats_with_its_usage() -> None:
    with Accelerator() as accelerator:
        async with client_of(serving_app(program_of(model(), accelerator))) as client:
            body = {"model": "bot", "messages": [{"role": "user", "content": "When?"}]}
            made = (await client.post("/v1/chat/completions", json=body)).json()
    assert made["choices"][0]["message"]["content"] == "Built in 1932."
    assert made["usage"] == {"prompt_tokens": 7, "completion_tokens": 4, "total_tokens": 11}


async def test_a_chain_with_a_place_for_messages_takes_a_chat() -> None:
    seen: list[Any] = []

    def note(prompt: Any) -> Any:
        seen.extend(message.content for message in prompt.to_messages())
        return prompt

    place = ChatPromptTemplate.from_messages(
        [("system", "Be short."), MessagesPlaceholder("messages")]
    )
    chain = place | RunnableLambda(note) | model()
    with Accelerator() as accelerator:
        async with client_of(serving_app(program_of(chain, accelerator, "messages"))) as client:
            messages = [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b"},
                {"role": "user", "content": "c"},
            ]
            body = {"model": "bot", "messages": messages}
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
    assert seen == ["Be short.", "a", "b", "c"]


async def test_documents_become_json() -> None:
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    store.add_documents([Document("The bridge opened in 1932.", metadata={"year": 1932})])
    with Accelerator() as accelerator:
        served = program_of(store.as_retriever(), accelerator)
        async with client_of(serving_app(served)) as client:
            output = (await client.post("/invoke", json={"input": "When?"})).json()["output"]
        items = accelerator.metrics.snapshot()
    assert output[0]["page_content"] == "The bridge opened in 1932."
    assert output[0]["metadata"] == {"year": 1932}
    assert "engines" in items


async def test_many_requests_of_an_accelerated_chain_are_requests_of_its_accelerator() -> None:
    seen: list[Any] = []

    async def note(text: str) -> str:
        seen.append(current_request.get())
        return text

    with Accelerator() as accelerator:
        fast = accelerate(RunnableLambda(note), accelerator=accelerator)
        with Accelerator() as other:
            served = program_of(fast, other)
            assert served.accelerator is accelerator
            async with client_of(serving_app(served)) as client:
                await asyncio.gather(
                    *(client.post("/invoke", json={"input": str(n)}) for n in range(5))
                )
    assert len({request.request for request in seen}) == 5
    assert all(request.accelerator is accelerator for request in seen)


async def test_an_object_served_plain_is_not_scheduled() -> None:
    seen: list[Any] = []

    def note(text: str) -> str:
        seen.append(current_request.get())
        return text

    with Accelerator() as accelerator:
        served = serve_object(RunnableLambda(note), ServingTerms(accelerator, plain=True))
        assert served is not None
        async with client_of(serving_app(served)) as client:
            await client.post("/invoke", json={"input": "a"})
        assert served.accelerator is None
    assert seen == [None]


async def test_a_chain_is_cancelled_within_a_step_once_its_client_leaves() -> None:
    begun, later = asyncio.Event(), []

    async def first(text: str) -> str:
        begun.set()
        await asyncio.Event().wait()
        return text

    chain = RunnableLambda(first) | RunnableLambda(later.append)
    with Accelerator() as accelerator:
        call = AsgiCall(
            serving_app(program_of(chain, accelerator)).asgi(), "/invoke", {"input": "a"}
        )
        await begun.wait()
        call.leave()
        await call.task
        assert accelerator.is_idle
    assert later == []


async def test_a_stream_of_a_chain_is_closed_once_its_client_leaves() -> None:
    closed = asyncio.Event()

    async def count(_: Any) -> Any:
        try:
            while True:
                yield "a"
                await asyncio.sleep(0)
        finally:
            closed.set()

    with Accelerator() as accelerator:
        served = program_of(RunnableGenerator(count), accelerator)
        call = AsgiCall(serving_app(served).asgi(), "/stream", {"input": "a"})
        await call.sending.wait()
        call.leave()
        await call.task
        assert closed.is_set()
        assert accelerator.is_idle


class ChatState(TypedDict):
    """A chat, and a field that no client may set."""

    messages: Annotated[list[Any], add_messages]
    allowed: bool


class QuestionState(TypedDict, total=False):
    """A question, its answer, and a field that no client may set."""

    question: str
    answer: str
    allowed: bool


def chat_graph() -> Any:
    bot = model()

    def answer(state: ChatState) -> Any:
        assert not state.get("allowed")
        return {"messages": [bot.invoke(state["messages"])]}

    graph = StateGraph(ChatState)
    graph.add_node("answer", answer)
    return graph.add_edge(START, "answer").add_edge("answer", END).compile()


async def test_a_graph_with_messages_chats_and_streams_its_model() -> None:
    with Accelerator() as accelerator:
        async with client_of(serving_app(program_of(chat_graph(), accelerator))) as client:
            body: dict[str, Any] = {
                "model": "bot",
                "messages": [{"role": "user", "content": "When?"}],
            }
            made = (await client.post("/v1/chat/completions", json=body)).json()
            assert made["choices"][0]["message"]["content"] == "Built in 1932."
            asked = {"messages": body["messages"]}
            told = (await client.post("/stream", json=asked)).text
            assert texts_of(told) == "Built in 1932."
            assert '"step": {"answer"' in told
            refused = await client.post("/invoke", json={**asked, "allowed": True})
            assert refused.status_code == 422


async def test_a_graph_takes_the_inputs_that_are_listed() -> None:
    graph = StateGraph(QuestionState)
    graph.add_node("answer", lambda state: {"answer": state["question"].upper()})
    compiled: Any = graph.add_edge(START, "answer").add_edge("answer", END).compile()
    with Accelerator() as accelerator:
        with pytest.raises(ConfigError, match="--input"):
            program_of(compiled, accelerator)
        served = program_of(compiled, accelerator, "question")
        async with client_of(serving_app(served)) as client:
            made = (await client.post("/invoke", json={"question": "when"})).json()
    assert made == {"output": {"question": "when", "answer": "WHEN"}}


def test_a_graph_whose_threads_clients_would_share_is_refused() -> None:
    graph = StateGraph(QuestionState)
    graph.add_node("answer", lambda state: {"answer": state["question"].upper()})
    graph.add_edge(START, "answer").add_edge("answer", END)
    compiled: Any = graph.compile(checkpointer=InMemorySaver())
    with Accelerator() as accelerator, pytest.raises(ConfigError, match="by threads"):
        program_of(compiled, accelerator, "question")


@pytest.mark.parametrize("obj", [model(), DeterministicFakeEmbedding(size=4)])
def test_inputs_of_an_object_that_has_its_own_are_refused(obj: Any) -> None:
    with Accelerator() as accelerator, pytest.raises(ConfigError, match="--input"):
        program_of(obj, accelerator, "question")


async def test_embeddings_embed_queries_and_documents() -> None:
    embeddings = DeterministicFakeEmbedding(size=4)
    with Accelerator() as accelerator:
        served = serve_object(embeddings, ServingTerms(accelerator))
        assert isinstance(served, ServedEmbedder)
        async with client_of(serving_app(served)) as client:
            for kind in ("document", "query"):
                body = {"model": "bot", "input": ["a"], "input_type": kind}
                row = (await client.post("/v1/embeddings", json=body)).json()["data"][0]
                assert row["embedding"] == pytest.approx(embeddings.embed_query("a"), rel=1e-6)


def test_an_object_of_another_framework_is_left_to_others() -> None:
    with Accelerator() as accelerator:
        assert serve_object(object(), ServingTerms(accelerator)) is None
