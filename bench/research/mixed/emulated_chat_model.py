"""The emulated accelerator as an ordinary LangChain chat model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, closing
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from pydantic import Field

from bench.emulated.batch import Update
from bench.emulated.device import EmulatedDevice
from langchain_rag_accel.components.chat_models import generation_input
from rag_accel.engine_api import GenerationOutput


class EmulatedChatModel(BaseChatModel):
    """A chat model on an emulated device: the times are modelled, the text is made up.

    Callers that wait at the same time share the device's batch, whether they come through this
    model, through an owned engine or over HTTP, so that two systems under test can be given the
    same device. Streams carry words; the last chunk carries the token counts.

    Args:
        device: the device; its maker closes it.
        max_tokens: longest answer; ``None`` leaves it to the device. A call may name its own.
    """

    device: EmulatedDevice = Field(exclude=True)
    max_tokens: int | None = None

    model_config = {"arbitrary_types_allowed": True}

    @property
    def _llm_type(self) -> str:
        return "rag-accel-emulated"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model_name": self._name, "max_tokens": self.max_tokens}

    @property
    def _name(self) -> str:
        return f"emulated-{self.device.table.name}"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return self._result(self.device.generate(self._asked(messages, stop, kwargs)))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return self._result(await self.device.agenerate(self._asked(messages, stop, kwargs)))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        asked = self._asked(messages, stop, kwargs)
        with closing(self.device.updates(asked, stream=True)) as updates:
            for update in updates:
                chunk = self._chunk(update)
                if run_manager is not None:
                    run_manager.on_llm_new_token(update.delta, chunk=chunk)
                yield chunk

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        asked = self._asked(messages, stop, kwargs)
        async with aclosing(self.device.aupdates(asked, stream=True)) as updates:
            async for update in updates:
                chunk = self._chunk(update)
                if run_manager is not None:
                    await run_manager.on_llm_new_token(update.delta, chunk=chunk)
                yield chunk

    def _asked(
        self, messages: list[BaseMessage], stop: list[str] | None, kwargs: dict[str, Any]
    ) -> Any:
        return generation_input(messages, stop, kwargs.get("max_tokens", self.max_tokens))

    def _result(self, output: GenerationOutput) -> ChatResult:
        message = AIMessage(
            content=output.text,
            usage_metadata=_usage(output),
            response_metadata=self._metadata(output),
        )
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _chunk(self, update: Update) -> ChatGenerationChunk:
        output = update.output
        message = AIMessageChunk(
            content=update.delta,
            usage_metadata=None if output is None else _usage(output),
            response_metadata={} if output is None else self._metadata(output),
        )
        return ChatGenerationChunk(message=message)

    def _metadata(self, output: GenerationOutput) -> dict[str, Any]:
        return {"model_name": self._name, "finish_reason": output.finish_reason}


def _usage(output: GenerationOutput) -> UsageMetadata:
    prompt, completion = output.prompt_tokens, output.completion_tokens
    return UsageMetadata(
        input_tokens=prompt, output_tokens=completion, total_tokens=prompt + completion
    )
