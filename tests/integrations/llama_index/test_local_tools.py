"""A local LLM of LlamaIndex's that calls functions and answers by a class."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
sys.path.append(str(Path(__file__).parents[2] / "engines" / "llm"))

from fake_runner import tokenizer
from li_programs import run_in_loop
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from pydantic import BaseModel
from tiny_chat import model
from tool_chat import ARGUMENTS, CALL, MALFORMED, rendered, script, scripted_model

from llama_index_rag_accel import RagAccelLLM
from rag_accel import Accelerator, ConfigError

pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning")
JSON = '{"name": "Fuji", "metres": 3776}'


def height(of: str) -> str:
    """Return the height of a mountain."""
    return f"{of}: 3776 metres"


HEIGHT = FunctionTool.from_defaults(height)


class Mountain(BaseModel):
    """A mountain."""

    name: str
    metres: int


@pytest.fixture
def llm(accelerator: Accelerator) -> RagAccelLLM:
    return RagAccelLLM(**scripted_model(accelerator))


@pytest.mark.parametrize("streaming", [False, True])
def test_an_agent_calls_its_function_and_answers(
    llm: RagAccelLLM, monkeypatch: pytest.MonkeyPatch, streaming: bool
) -> None:
    prompts = script(
        monkeypatch, lambda prompt: "3776 metres." if "<tool_response" in prompt else CALL
    )
    agent = FunctionAgent(llm=llm, tools=[HEIGHT], streaming=streaming)

    async def answer() -> Any:
        return await agent.run("How high?")

    found = run_in_loop(answer())
    assert str(found) == "3776 metres."
    assert [(call.tool_name, call.tool_kwargs) for call in found.tool_calls] == [
        ("height", ARGUMENTS)
    ]
    function = {"name": "height", "arguments": ARGUMENTS}
    turns = [
        {"role": "user", "content": "How high?"},
        {
            "role": "assistant",
            "content": "Let me see.\n",
            "tool_calls": [{"type": "function", "function": function}],
        },
        {"role": "tool", "name": "height", "content": height(**ARGUMENTS)},
    ]
    tools = [HEIGHT.metadata.to_openai_tool()]
    assert prompts == [rendered(turns[:1], tools), rendered(turns, tools)]


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_call_is_text(
    text: str, llm: RagAccelLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, lambda prompt: text)
    found = llm.chat_with_tools([HEIGHT], "How high?")
    assert found.message.content == text
    assert llm.get_tool_calls_from_response(found, error_on_no_tool_call=False) == []
    with pytest.raises(ValueError, match="calls no tool"):
        llm.get_tool_calls_from_response(found)


def test_a_template_without_tools_makes_no_model_of_functions(accelerator: Accelerator) -> None:
    plain = RagAccelLLM(model(), tokenizer=tokenizer(), accelerator=accelerator)
    assert not plain.metadata.is_function_calling_model
    with pytest.raises(ConfigError, match="take no tools"):
        plain.chat_with_tools([HEIGHT], "How high?")


def test_tools_and_turns_that_fit_nothing_are_refused(llm: RagAccelLLM) -> None:
    with pytest.raises(ConfigError, match="several times: height"):
        llm.chat_with_tools([HEIGHT, HEIGHT], "How high?")
    with pytest.raises(ConfigError, match="tool_choice"):
        llm.chat_with_tools([HEIGHT], "How high?", tool_choice="height")
    with pytest.raises(ConfigError, match="answers no call"):
        llm.chat([ChatMessage(role="tool", content="a", additional_kwargs={"tool_call_id": "1"})])


def test_structured_output_is_read_from_text(
    llm: RagAccelLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, lambda prompt: JSON)
    expected = Mountain(name="Fuji", metres=3776)
    prompt = PromptTemplate("Which?")
    assert llm.structured_predict(Mountain, prompt) == expected
    assert list(llm.stream_structured_predict(Mountain, prompt))[-1] == expected
    assert llm.as_structured_llm(Mountain).complete("Which?").raw == expected
