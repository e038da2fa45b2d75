"""Tokens that models of LlamaIndex report are counted once."""

from __future__ import annotations

from typing import Any

from llama_index.core.base.llms.types import ChatMessage, CompletionResponse, LLMMetadata
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.llms.custom import CustomLLM

from llama_index_rag_accel.integration import INTEGRATION

RAW = {"usage": {"prompt_tokens": 40, "completion_tokens": 2}}


class Reporting(CustomLLM):
    """A model whose chat is its completion, so that each chat is two events."""

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata()

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text="said", raw=dict(RAW))

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        yield CompletionResponse(text="sa", delta="sa", raw=None)
        yield CompletionResponse(text="said", delta="id", raw=dict(RAW))


async def test_each_answer_counts_once() -> None:
    model, asked = Reporting(), [ChatMessage(content="q")]
    with INTEGRATION.counted_tokens() as counts:
        model.complete("q")
        model.chat(asked)
        await model.achat(asked)
        for _ in model.stream_chat(asked):
            pass
    model.complete("q")
    assert counts() == (160, 8)
