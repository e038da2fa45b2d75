"""Agents of LlamaIndex behind HTTP: their tools run, and each request has its own messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, MessageRole, ToolCallBlock
from llama_index.core.llms import MockFunctionCallingLLM
from llama_index.core.tools import FunctionTool
from serving_kit import AsgiCall, client_of, serving_app

from llama_index_rag_accel.served import serve_object
from rag_accel.accelerator import Accelerator
from rag_accel.errors import ConfigError
from rag_accel.serving.served import ServingTerms

# LlamaIndex looks at all attributes of an agent it makes, deprecated ones of pydantic too.
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning")


def says(messages: Sequence[ChatMessage], **_: Any) -> ChatMessage:
    """Return a call of the tool first, then what it gave with all that the user has asked."""
    last = messages[-1]
    if last.role is MessageRole.TOOL:
        asked = [str(message.content) for message in messages if message.role is MessageRole.USER]
        return ChatMessage(role="assistant", content=f"{last.content}, asked {'; '.join(asked)}")
    call = ToolCallBlock(
        tool_call_id="1", tool_name="opening_year", tool_kwargs={"bridge": last.content}
    )
    return ChatMessage(role="assistant", blocks=[call])


async def opening_year(bridge: str) -> str:
    """Return the year in which a bridge opened."""
    return f"1932 for {bridge}"


def agent(tool: Any = opening_year) -> FunctionAgent:
    model = MockFunctionCallingLLM(response_generator=says)
    tools = [FunctionTool.from_defaults(async_fn=tool, name="opening_year")]
    return FunctionAgent(name="years", description="years", llm=model, tools=tools)


def workflow(tool: Any = opening_year) -> AgentWorkflow:
    return AgentWorkflow(agents=[agent(tool)], root_agent="years")


def chat(*texts: str, **more: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]
    return {"model": "bot", "messages": messages, **more}


@pytest.mark.parametrize("make", [agent, workflow])
async def test_an_agent_answers_a_chat_with_its_tools(make: Any) -> None:
    with Accelerator() as accelerator:
        app = serving_app(serve_object(make(), ServingTerms(accelerator)))
        async with client_of(app) as client:
            for name in ("first", "second"):
                body = chat(f"{name} one", "yes?", f"{name} two")
                answer = (await client.post("/v1/chat/completions", json=body)).json()
                said = answer["choices"][0]["message"]["content"]
                assert said == f"1932 for {name} two, asked {name} one; {name} two"


@pytest.mark.parametrize("make", [agent, workflow])
async def test_an_agent_streams_its_answer_and_names_its_steps(make: Any) -> None:
    with Accelerator() as accelerator:
        app = serving_app(serve_object(make(), ServingTerms(accelerator)))
        async with client_of(app) as client:
            told = await client.post("/stream", json={"messages": chat("one")["messages"]})
            said = await client.post("/v1/chat/completions", json=chat("one", stream=True))
    events = [json.loads(part[6:]) for part in told.text.split("\n\n")[:-2]]
    assert "".join(event.get("text", "") for event in events) == "1932 for one, asked one"
    steps = [event["step"] for event in events if "step" in event]
    assert steps.index("ToolCall") < steps.index("ToolCallResult")
    parts = [json.loads(part[6:]) for part in said.text.split("\n\n")[:-2]]
    texts = [part["choices"][0]["delta"].get("content") or "" for part in parts]
    assert "".join(texts) == "1932 for one, asked one"


async def test_chats_at_once_share_no_messages() -> None:
    with Accelerator() as accelerator:
        app = serving_app(serve_object(agent(), ServingTerms(accelerator)))
        async with client_of(app) as client:
            answers = await asyncio.gather(
                *(client.post("/v1/chat/completions", json=chat(f"n{n}")) for n in range(8))
            )
    said = [answer.json()["choices"][0]["message"]["content"] for answer in answers]
    assert said == [f"1932 for n{n}, asked n{n}" for n in range(8)]


@pytest.mark.parametrize("make", [agent, workflow])
async def test_an_agent_is_cancelled_in_its_tool_once_its_client_leaves(make: Any) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def waiting(bridge: str) -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return bridge

    with Accelerator() as accelerator:
        asgi = serving_app(serve_object(make(waiting), ServingTerms(accelerator))).asgi()
        call = AsgiCall(asgi, "/invoke", {"messages": chat("one")["messages"]})
        await begun.wait()
        call.leave()
        await call.task
        assert ended.is_set()
        assert accelerator.is_idle
    assert call.status is None


def test_an_agent_names_its_input_itself() -> None:
    with Accelerator() as accelerator, pytest.raises(ConfigError, match="names its input itself"):
        serve_object(agent(), ServingTerms(accelerator, ("user_msg",)))
