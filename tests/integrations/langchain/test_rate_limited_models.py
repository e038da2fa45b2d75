"""Programs over endpoints that refuse calls: nobody is lost, and whoever waits is told apart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any

import openai
import pytest
from embeddings_server import EmbeddingsServer
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langgraph.graph import StateGraph, add_messages
from limited_server import LimitedServer, Rate, ScriptedAnswer
from pydantic import SecretStr

from langchain_rag_accel import accelerate
from rag_accel import Accelerator

RATE, BURST, CALLERS = 60.0, 5, 24
QUESTIONS = [f"question {number}" for number in range(CALLERS)]

Make = Callable[..., Any]


@pytest.fixture
def server() -> Iterator[LimitedServer]:
    with LimitedServer(Rate(RATE, BURST)) as made:
        yield made


@pytest.fixture
async def make(server: LimitedServer) -> AsyncIterator[Make]:
    """Yield a maker of chat models on that server, whose connections end with the test."""
    clients: list[Any] = []

    def made(**fields: Any) -> ChatOpenAI:
        how: dict[str, Any] = {"base_url": server.base_url, "api_key": "k", "max_retries": 2}
        clients.extend([openai.OpenAI(**how), openai.AsyncOpenAI(**how)])
        return ChatOpenAI(
            model="m",
            root_client=clients[-2],
            root_async_client=clients[-1],
            client=clients[-2].chat.completions,
            async_client=clients[-1].chat.completions,
            **fields,
        )

    yield made
    for client in clients:
        closing = client.close()
        if closing is not None:
            await closing


async def test_everybody_is_answered(
    server: LimitedServer, make: Make, accelerator: Accelerator
) -> None:
    chain = ChatPromptTemplate.from_template("{question}") | make()
    fast = accelerate(chain, accelerator=accelerator)
    found = await asyncio.gather(*(fast.ainvoke({"question": text}) for text in QUESTIONS))
    assert [type(answer).__name__ for answer in found] == ["AIMessage"] * CALLERS
    assert len(server.texts) <= 2.1 * CALLERS


def as_graph(model: Any) -> Any:
    """Return a graph that asks a model, behind a chain's interface."""

    async def ask(messages: Any) -> Any:
        return [await model.ainvoke(messages)]

    graph: Any = StateGraph(Annotated[list[Any], add_messages]).add_node("ask", ask)
    return graph.set_entry_point("ask").set_finish_point("ask").compile()


@pytest.mark.parametrize(
    ("as_program", "is_interactive"), [(lambda model: model | str, True), (as_graph, False)]
)
async def test_a_batch_waits_for_other_calls(
    server: LimitedServer,
    make: Make,
    accelerator: Accelerator,
    as_program: Callable[[Any], Any],
    is_interactive: bool,
) -> None:
    model = make()
    batch = accelerate(as_program(model), accelerator=accelerator)
    fast = accelerate(model | str, accelerator=accelerator, interactive=is_interactive)
    await batch.abatch(QUESTIONS)  # the endpoint has refused calls by now
    order: list[str] = []

    async def note(name: str, work: Any) -> None:
        await work
        order.append(name)

    loads = asyncio.ensure_future(note("batch", batch.abatch(QUESTIONS)))
    await asyncio.sleep(0.1)
    await asyncio.gather(*(note("other", fast.ainvoke(text)) for text in QUESTIONS[:4]))
    await loads
    assert order == ["other"] * 4 + ["batch"]


def embeddings_of(server: LimitedServer | EmbeddingsServer) -> OpenAIEmbeddings:
    url, key = server.base_url, SecretStr("k")
    return OpenAIEmbeddings(base_url=url, api_key=key, check_embedding_ctx_length=False)


async def test_a_shared_call_that_is_refused_is_sent_again_whole(accelerator: Accelerator) -> None:
    def refuse_shared(number: int, text: str) -> ScriptedAnswer | None:
        return ScriptedAnswer(429, {"retry-after": "0.05"}) if number == 1 else None

    with LimitedServer(script=refuse_shared) as server:
        plain = embeddings_of(server)
        fast = accelerate(plain, accelerator=accelerator)
        found = await asyncio.gather(*map(fast.aembed_query, QUESTIONS))
        assert len(found) == CALLERS
        assert 3 <= len(server.texts) <= 4  # alone, each caller would have asked again
        plain.client._client.close()
        await plain.async_client._client.close()


async def test_questions_of_interactive_programs_share_no_call_with_others(
    accelerator: Accelerator,
) -> None:
    with EmbeddingsServer() as server:
        plain = embeddings_of(server)
        fast = accelerate(plain, accelerator=accelerator, interactive=True)
        slow = accelerate(plain, accelerator=accelerator)
        asking = [fast.aembed_query(f"fast {number}") for number in range(8)]
        await asyncio.gather(*asking, *(slow.aembed_query(f"slow {n}") for n in range(8)))
        assert len(server.calls) <= 6
        assert all(len({text.split()[0] for text in call}) == 1 for call in server.calls)
        plain.client._client.close()
        await plain.async_client._client.close()
