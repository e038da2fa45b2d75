"""Be a chat model that conforms to LangChain's standard suite, offline.

It answers from a few rules: it calls a tool when one is forced, or when a tool fits the question
and has not answered yet; it fills arguments by name and type; else it says a fixed sentence.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any, Literal

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolCall, ToolMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from langchain_core.output_parsers.openai_tools import JsonOutputKeyToolsParser, PydanticToolsParser
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langchain_core.utils.pydantic import is_basemodel_subclass
from pydantic import Field, SecretStr

SENTENCE = "Hello there, how are you today? 你好"


def from_env() -> SecretStr:
    """Return the key that the environment names; this model needs none."""
    return SecretStr(os.environ.get("SCRIPTED_API_KEY", "none"))


class ScriptedChatModel(BaseChatModel):
    """Answer by rule, with tools, structured output, streaming, usage and stop sequences."""

    model: str = "scripted-1"
    temperature: float | None = None
    max_tokens: int | None = None
    timeout: float | None = None
    stop: list[str] | None = None
    max_retries: int = 2
    streaming: bool = False
    api_key: SecretStr = Field(default_factory=from_env)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model": self.model, "temperature": self.temperature}

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        text, calls = self._reply(messages, stop, kwargs)
        message = AIMessage(
            content=text,
            tool_calls=calls,
            response_metadata={"model_name": kwargs.get("model", self.model)},
            usage_metadata=_usage(messages, text),
        )
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return self._generate(messages, stop, None, **kwargs)

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        for chunk in self._chunks(messages, stop, kwargs):
            if run_manager is not None:
                run_manager.on_llm_new_token(str(chunk.message.content), chunk=chunk)
            yield chunk

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in self._chunks(messages, stop, kwargs):
            if run_manager is not None:
                await run_manager.on_llm_new_token(str(chunk.message.content), chunk=chunk)
            yield chunk

    def _chunks(
        self, messages: list[BaseMessage], stop: list[str] | None, kwargs: dict[str, Any]
    ) -> Iterator[ChatGenerationChunk]:
        text, calls = self._reply(messages, stop, kwargs)
        for word in re.findall(r"\S+\s*", text):
            yield ChatGenerationChunk(message=AIMessageChunk(content=word))
        for index, call in enumerate(calls):
            part = tool_call_chunk(
                name=call["name"], args=json.dumps(call["args"]), id=call["id"], index=index
            )
            message = AIMessageChunk(content="", tool_call_chunks=[part])
            yield ChatGenerationChunk(message=message)
        last = AIMessageChunk(
            content="",
            response_metadata={"model_name": kwargs.get("model", self.model)},
            usage_metadata=_usage(messages, text),
            chunk_position="last",
        )
        yield ChatGenerationChunk(message=last)

    def _reply(
        self, messages: list[BaseMessage], stop: list[str] | None, kwargs: dict[str, Any]
    ) -> tuple[str, list[ToolCall]]:
        question = str(messages[-1].text)
        if kwargs.get("response_format") == "json":
            return json.dumps({"setup": "Why?", "punchline": "Because."}), []
        tool = _chosen(messages, kwargs.get("tools") or [], kwargs.get("tool_choice"))
        if tool is not None:
            name = tool["function"]["name"]
            call = ToolCall(name=name, args=_arguments(tool, question), id=f"call_{name}")
            return "", [{**call, "type": "tool_call"}]
        text = SENTENCE
        for word in stop or self.stop or ():
            text = text.split(word)[0]
        return text, []

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        described = [convert_to_openai_tool(tool) for tool in tools]
        return self.bind(tools=described, tool_choice=tool_choice, **kwargs)

    def with_structured_output(
        self,
        schema: dict[str, Any] | type,
        *,
        include_raw: bool = False,
        method: Literal["function_calling", "json_mode", "json_schema"] = "function_calling",
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        is_model = isinstance(schema, type) and is_basemodel_subclass(schema)
        shape = {"kwargs": {"method": method}, "schema": schema}
        if method == "json_mode":
            model = self.bind(response_format="json", ls_structured_output_format=shape)
            parser: Any = (
                PydanticOutputParser(pydantic_object=schema) if is_model else JsonOutputParser()
            )
        else:
            name = convert_to_openai_tool(schema)["function"]["name"]
            model = self.bind_tools([schema], tool_choice=name, ls_structured_output_format=shape)
            parser = (
                PydanticToolsParser(tools=[schema], first_tool_only=True)
                if is_model
                else JsonOutputKeyToolsParser(key_name=name, first_tool_only=True)
            )
        if not include_raw:
            return model | parser
        parsed = RunnablePassthrough.assign(
            parsed=itemgetter("raw") | parser, parsing_error=lambda _: None
        )
        return RunnableMap(raw=model) | parsed


def _chosen(
    messages: list[BaseMessage], tools: list[dict[str, Any]], choice: str | None
) -> dict[str, Any] | None:
    if not tools or (isinstance(messages[-1], ToolMessage) and choice is None):
        return None
    named = [tool for tool in tools if tool["function"]["name"] == choice]
    if named:
        return named[0]
    text = str(messages[-1].text).lower()
    fitting = [
        tool
        for tool in tools
        if any(part in text for part in tool["function"]["name"].lower().split("_"))
    ]
    return fitting[0] if fitting else (tools[0] if choice == "any" else None)


def _arguments(tool: dict[str, Any], question: str) -> dict[str, Any]:
    properties = tool["function"].get("parameters", {}).get("properties", {})
    return {name: _argument(name, shape, question) for name, shape in properties.items()}


def _argument(name: str, shape: dict[str, Any], question: str) -> Any:
    quoted = re.search(r"'([^']+)'", question)
    numbers = [int(number) for number in re.findall(r"\d+", question)]
    if shape.get("type") == "integer":
        return numbers[0] if numbers else 0
    if "name" in name and quoted is not None:
        return quoted.group(1)
    return "Pirate" if "style" in name else "something"


def _usage(messages: list[BaseMessage], text: str) -> UsageMetadata:
    given = sum(len(str(message.text).split()) for message in messages)
    made = len(text.split())
    return UsageMetadata(input_tokens=given, output_tokens=made, total_tokens=given + made)
