"""A fake model that calls tools."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    LLMMetadata,
    MessageRole,
)
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection


class ToolLLM(FunctionCallingLLM):
    """A model that calls every tool once, then answers from what they gave, word by word."""

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(context_window=4096, is_function_calling_model=True)

    def _prepare_chat_with_tools(
        self, tools: Sequence[Any], chat_history: Any = None, **kwargs: Any
    ) -> dict[str, Any]:
        return {"messages": chat_history, "tools": [tool.metadata.name for tool in tools]}

    def get_tool_calls_from_response(
        self, response: ChatResponse, error_on_no_tool_call: bool = True, **kwargs: Any
    ) -> list[ToolSelection]:
        names = response.message.additional_kwargs.get("tool_calls", [])
        arguments = {"input": "When was the bridge opened?"}
        return [ToolSelection(tool_id=one, tool_name=one, tool_kwargs=arguments) for one in names]

    def _chunks(self, messages: Sequence[ChatMessage], tools: Sequence[str]) -> Iterator[Any]:
        results = [one.content for one in messages if one.role == MessageRole.TOOL]
        if not results:
            yield _chat_response("", additional_kwargs={"tool_calls": [*tools]})
            return
        text = ""
        for word in sorted(str(one) for one in results):
            text += word + " "
            yield _chat_response(text, delta=word + " ")

    @llm_chat_callback()
    def chat(self, messages: Any, tools: Sequence[str] = (), **kwargs: Any) -> ChatResponse:
        return list(self._chunks(messages, tools))[-1]

    @llm_chat_callback()
    async def achat(self, messages: Any, tools: Sequence[str] = (), **kwargs: Any) -> ChatResponse:
        return list(self._chunks(messages, tools))[-1]

    @llm_chat_callback()
    def stream_chat(self, messages: Any, tools: Sequence[str] = (), **kwargs: Any) -> Any:
        return self._chunks(messages, tools)

    @llm_chat_callback()
    async def astream_chat(self, messages: Any, tools: Sequence[str] = (), **kwargs: Any) -> Any:
        async def chunks() -> AsyncIterator[ChatResponse]:
            for chunk in self._chunks(messages, tools):
                yield chunk

        return chunks()

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        raise NotImplementedError

    @llm_completion_callback()
    async def acomplete(self, *args: Any, **kwargs: Any) -> CompletionResponse:
        raise NotImplementedError

    @llm_completion_callback()
    def stream_complete(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    @llm_completion_callback()
    async def astream_complete(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


def _chat_response(text: str, delta: str = "", **kwargs: Any) -> ChatResponse:
    message = ChatMessage(role=MessageRole.ASSISTANT, content=text, **kwargs)
    return ChatResponse(message=message, delta=delta)
