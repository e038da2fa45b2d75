"""The extractive reader as an ordinary LangChain chat model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from rag_accel.engine_api import GenerationInput, Message, Role
from rag_accel_demo.extractive.engine import Completion, complete

_ROLES: dict[str, Role] = {"system": "system", "ai": "assistant"}


class ExtractiveChatModel(BaseChatModel):
    """A chat model that answers with the best-supported sentences of the prompt's passages, cited.

    It needs no model files and no network. It generates nothing and reasons about nothing: each
    sentence stands in a passage, and when no passage supports an answer it says so.
    """

    max_sentences: int = 3

    @property
    def _llm_type(self) -> str:
        return "rag-accel-extractive"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        message = AIMessage(content=self._complete(messages, stop).output.text)
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        for part in self._complete(messages, stop).pieces:
            chunk = ChatGenerationChunk(message=AIMessageChunk(content=part))
            if run_manager is not None:
                run_manager.on_llm_new_token(part, chunk=chunk)
            yield chunk

    def _complete(self, messages: list[BaseMessage], stop: list[str] | None) -> Completion:
        return complete(generation_input(messages, stop), self.max_sentences)


def generation_input(
    messages: Sequence[BaseMessage], stop: Sequence[str] | None, max_tokens: int | None = None
) -> GenerationInput:
    """Return LangChain's messages as engines take them."""
    turns = tuple(Message(_ROLES.get(m.type, "user"), str(m.text)) for m in messages)
    return GenerationInput(turns, tuple(stop or ()), max_tokens)
