"""A local chat model of LangChain's that calls tools and answers by a schema."""

from __future__ import annotations

from typing import Any

import pytest
from fake_runner import tokenizer
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.prebuilt import create_react_agent
from pydantic import BaseModel
from tiny_chat import model
from tool_chat import ARGUMENTS, CALL, MALFORMED, rendered, script, scripted_model

from langchain_rag_accel import ChatRagAccel, accelerate
from rag_accel import Accelerator, ConfigError

pytest.importorskip("transformers")


JSON = '{"name": "Fuji", "metres": 3776}'


@tool
def height(of: str) -> str:
    """Return the height of a mountain."""
    return f"{of}: 3776 metres"


class Mountain(BaseModel):
    """A mountain."""

    name: str
    metres: int


@pytest.fixture
def chat(accelerator: Accelerator) -> ChatRagAccel:
    return ChatRagAccel(**scripted_model(accelerator))


def _answer(prompt: str) -> str:
    return "It is 3776 metres." if "<tool_response" in prompt else CALL


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("is_fast", [False, True])
@pytest.mark.filterwarnings("ignore:create_react_agent has been moved")
def test_an_agent_calls_its_tool_and_answers(
    chat: ChatRagAccel, monkeypatch: pytest.MonkeyPatch, streams: bool, is_fast: bool
) -> None:
    prompts = script(monkeypatch, _answer)
    agent: Any = create_react_agent(chat, [height])
    agent = accelerate(agent, accelerator=chat.accelerator) if is_fast else agent
    asked = {"messages": [HumanMessage("How high?")]}
    if streams:
        modes = list(agent.stream(asked, stream_mode=["messages", "values"]))
        messages = modes[-1][1]["messages"]
    else:
        messages = agent.invoke(asked)["messages"]
    assert [message.content for message in messages] == [
        "How high?",
        "Let me see.\n",
        "Fuji — 富士: 3776 metres",
        "It is 3776 metres.",
    ]
    (call,) = messages[1].tool_calls
    function = {"name": "height", "arguments": ARGUMENTS}
    turns = [
        {"role": "user", "content": "How high?"},
        {
            "role": "assistant",
            "content": "Let me see.\n",
            "tool_calls": [{"type": "function", "function": function}],
        },
        {"role": "tool", "name": "height", "content": messages[2].content},
    ]
    tools = [convert_to_openai_tool(height)]
    assert prompts == [rendered(turns[:1], tools), rendered(turns, tools)]
    assert call["args"] == ARGUMENTS
    assert call["id"] == messages[2].tool_call_id


@pytest.mark.parametrize("text", [CALL, *MALFORMED.values()], ids=["a call", *MALFORMED])
async def test_a_stream_ends_with_the_calls_of_the_whole_answer(
    text: str, chat: ChatRagAccel, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, lambda prompt: text)
    bound = chat.bind_tools([height])
    whole = bound.invoke("How high?")
    chunks: list[Any] = [chunk async for chunk in bound.astream("How high?")]
    joined = sum(chunks[1:], chunks[0])
    assert joined.content == whole.content
    assert len(whole.tool_calls) + len(whole.invalid_tool_calls) == 1
    assert [call["args"] for call in joined.tool_calls] == [
        call["args"] for call in whole.tool_calls
    ]
    assert [call["args"] for call in joined.invalid_tool_calls] == [
        call["args"] for call in whole.invalid_tool_calls
    ]
    assert bool(whole.tool_calls) == (text == CALL)


@pytest.mark.parametrize("choice", ["any", "height", True])
def test_no_call_can_be_forced(choice: Any, chat: ChatRagAccel) -> None:
    with pytest.raises(ConfigError, match="tool_choice"):
        chat.bind_tools([height], tool_choice=choice)
    chat.bind_tools([height], tool_choice="auto")


def test_a_template_without_tools_is_refused_by_name(accelerator: Accelerator) -> None:
    plain = ChatRagAccel(model=model(), tokenizer=tokenizer(), accelerator=accelerator)
    with pytest.raises(ConfigError, match="take no tools"):
        plain.bind_tools([height])
    with pytest.raises(ConfigError, match="take no tools"):
        plain.with_structured_output(Mountain, method="function_calling")


def test_a_tool_message_without_its_call_is_refused(chat: ChatRagAccel) -> None:
    call = {"name": "height", "args": {}, "id": "1"}
    said = [HumanMessage("a"), AIMessage("", tool_calls=[call])]
    with pytest.raises(ConfigError, match=r"message 3; found .*'2'; valid: '1'"):
        chat.invoke([*said, ToolMessage("b", tool_call_id="2")])


@pytest.mark.parametrize("method", ["json_schema", "json_mode"])
def test_structured_output_is_read_from_text(
    method: Any, chat: ChatRagAccel, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = script(monkeypatch, lambda prompt: f"```json\n{JSON}\n```")
    found = chat.with_structured_output(Mountain, method=method).invoke("Which?")
    as_dict = chat.with_structured_output(Mountain.model_json_schema(), method=method)
    assert found == Mountain(name="Fuji", metres=3776)
    assert as_dict.invoke([HumanMessage("Which?")]) == found.model_dump()
    assert all(('"metres"' in prompt) == (method == "json_schema") for prompt in prompts)


def test_structured_output_is_read_from_a_call(
    chat: ChatRagAccel, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, lambda prompt: f'{{"name": "Mountain", "parameters": {JSON}}}')
    structured = chat.with_structured_output(Mountain, method="function_calling")
    assert structured.invoke("Which?") == Mountain(name="Fuji", metres=3776)


def test_raw_output_has_the_error_of_its_parser(
    chat: ChatRagAccel, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, lambda prompt: "none")
    found: Any = chat.with_structured_output(Mountain, include_raw=True).invoke("Which?")
    assert found["raw"].content == "none"
    assert found["parsed"] is None
    assert "none" in str(found["parsing_error"])


@pytest.mark.parametrize("options", [{"method": "grammar"}, {"unheard": 1}, {"schema": None}])
def test_structured_output_that_there_is_none_of_is_refused(
    options: dict[str, Any], chat: ChatRagAccel
) -> None:
    with pytest.raises(ConfigError, match="with_structured_output"):
        chat.with_structured_output(**{"schema": Mountain, **options})
