"""A language model on this machine as a LangChain chat model whose calls share an engine.

What a local model cannot take of LangChain's messages is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from contextvars import ContextVar
from typing import Annotated, Any, Literal, cast

from langchain_core.callbacks import (
    AsyncCallbackManagerForLLMRun,
    CallbackManagerForLLMRun,
    Callbacks,
)
from langchain_core.documents import Document
from langchain_core.globals import get_llm_cache
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.language_models.base import LangSmithParams
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import InputTokenDetails, UsageMetadata
from langchain_core.messages.tool import invalid_tool_call, tool_call
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult, LLMResult
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, model_validator

from langchain_rag_accel.components.structured_output import structured
from rag_accel.accelerator import Accelerator
from rag_accel.accelerator.preparation import EngineAt
from rag_accel.adoption.local_calls import CallsAhead, LocalCalls, component_llm
from rag_accel.config import KvReuse
from rag_accel.engine_api import GenerationInput, GenerationOutput, Message, Role, ToolCall
from rag_accel.engines.llm.local.local_llm import named_bounds
from rag_accel.engines.llm.local.options import (
    KvRecipe,
    RunnerName,
    WeightsName,
    number,
    whole_number,
)
from rag_accel.engines.llm.local.text.stopping import stop_strings
from rag_accel.engines.llm.named import NamedLLM
from rag_accel.errors import ConfigError
from rag_accel.interception.arguments import refuse_unknown
from rag_accel.kv.prompt_chunks import locate_chunks, several_documents

#: Fields as they are given: what could merely be read as a number is refused, as in calls.
Whole = Annotated[int, BeforeValidator(whole_number)]
Number = Annotated[float, BeforeValidator(number)]

#: calls of a batch that wait at once where the caller names no limit
MAX_CONCURRENCY = 64
#: the calls of the ``generate`` that runs here
_ahead: ContextVar[CallsAhead | None] = ContextVar("rag_accel_calls_ahead", default=None)
#: arguments of ``generate`` that do not reach the model
_OF_THE_RUN = frozenset(
    {
        "tags",
        "metadata",
        "run_name",
        "run_id",
        "ls_structured_output_format",
        "structured_output_format",
    }
)
#: arguments that LangChain's suites give every chat model, and of which this one has no use
_UNUSED = frozenset({"api_key", "max_retries", "stop", "streaming", "timeout"})
_SAMPLING = ("temperature", "top_p", "top_k", "seed", "logprobs")


class ChatRagAccel(BaseChatModel):
    """A chat model of Hugging Face's that runs here, in steps that concurrent callers share.

    Without sampling options it gives the most probable tokens: in float32, the text that
    ``generate`` gives.

    Args:
        model: a folder, a name on the hub, or a causal language model of transformers, which stays
            as it is. Only safetensors are read, and no code that comes with a model is run. Or a
            ``LocalLLM``, ``VllmLLM`` or ``RemoteLLM`` with its bounds, over which those named here
            go.
        tokenizer: the tokenizer of a model object.
        dtype: ``float32`` or ``bfloat16``; by default that of the checkpoint.
        max_tokens: most tokens of an answer. A call may name its own, and each option below.
        temperature: 0 for the most probable token.
        top_p: the most probable tokens are kept until together they have this probability.
        top_k: so many most probable tokens are kept.
        seed: of each call's own generator.
        chat_template: a template in place of the tokenizer's.
        bounds: those of a ``LocalLLM``, which says what holds for those not named: ``pool_bytes``,
            ``prefix_lanes``, ``kv_reuse``, ``recompute_ratio``, ``chunk_bytes``, ``kv_folder``,
            ``kv_disk_bytes``, ``kv_max_age_s``, ``kv_recipe``, ``runner`` and ``weights``. Reused
            texts are known where a search of the same accelerated run found them, or where a call
            names them: ``invoke(messages, documents=[...])``.
        accelerator: schedules the work; by default the current run's, else the process default.

    Raises:
        ConfigError: an argument that it does not have, or a model that is not supported, or not
            proved to give what transformers gives.
    """

    __rag_accel_scheduled__ = True

    model_config = ConfigDict(arbitrary_types_allowed=True, populate_by_name=True)

    model: Any
    tokenizer: Any = Field(default=None, exclude=True)
    dtype: str | None = None
    max_tokens: Whole | None = Field(default=None, gt=0)
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: Whole | None = None
    seed: Whole | None = None
    chat_template: str | None = None
    pool_bytes: Whole | None = Field(default=None, gt=0)
    prefix_lanes: Whole | None = Field(default=None, ge=0)
    kv_reuse: KvReuse | None = None
    recompute_ratio: Number | None = Field(default=None, ge=0, le=1)
    chunk_bytes: Whole | None = Field(default=None, ge=0)
    kv_folder: str | None = None
    kv_disk_bytes: Whole | None = Field(default=None, ge=0)
    kv_max_age_s: Number | None = Field(default=None, ge=0)
    kv_recipe: KvRecipe | None = None
    runner: RunnerName | None = None
    weights: WeightsName | None = None
    accelerator: Accelerator | None = Field(default=None, exclude=True)

    _llm: NamedLLM = PrivateAttr()

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, given: Any) -> Any:
        if isinstance(given, dict):
            refuse_unknown(cls, {name: given[name] for name in given if name not in _UNUSED})
        return given

    @model_validator(mode="after")
    def _choose(self) -> ChatRagAccel:
        self._llm = component_llm(
            *(self.model, self.tokenizer),
            dtype=self.dtype,
            chat_template=self.chat_template,
            **named_bounds(self),
        )
        return self

    @property
    def _llm_type(self) -> str:
        return "rag-accel-local"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model_name": self._llm.name, "max_tokens": self.max_tokens, **self._sampling({})}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop, **kwargs)
        name = str(kwargs.get("model", self._llm.name))
        return {**params, "ls_provider": "rag_accel", "ls_model_name": name}

    def scheduled_by(self, accelerator: Accelerator) -> ChatRagAccel:
        """Return the same model on another accelerator."""
        return self.model_copy(update={"accelerator": accelerator})

    def explain_on(self, accelerator: Accelerator) -> str:
        """Return how an accelerator runs its calls."""
        return self._calls.describe(self.accelerator or accelerator)

    def prepared_engine(self, accelerator: Accelerator) -> EngineAt | None:
        """Return the engine of the model, loaded; on an accelerator unless it has its own."""
        return self._calls.prepared_engine(self.accelerator or accelerator)

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: Any = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Offer tools to the model, by its chat template; it chooses itself whether to call one.

        Raises:
            ConfigError: the template takes no tools, several have a name, or ``tool_choice`` is not
                None or ``auto``.
        """
        offered = tuple(convert_to_openai_tool(tool) for tool in tools)
        self._calls.check_tools(GenerationInput((), tools=offered), tool_choice)
        return self.bind(tools=list(offered), **kwargs)

    def with_structured_output(
        self,
        schema: dict[str, Any] | type | None = None,
        *,
        method: Literal["json_schema", "json_mode", "function_calling"] = "json_schema",
        include_raw: bool = False,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, dict[str, Any] | BaseModel]:
        """Parse answers by LangChain's own parsers; nothing forces the model to follow a schema.

        Args:
            schema: a pydantic class gives its instances; a typed dict, or a JSON schema with a
                title, gives dicts.
            method: ``json_schema`` appends the parser's instructions to the prompt. ``json_mode``
                leaves them to the prompt. ``function_calling`` offers the schema as a tool.
            include_raw: return a dict of ``raw``, ``parsed`` and ``parsing_error``.
            kwargs: only ``strict``, which LangChain passes and which is not heeded.

        Raises:
            ConfigError: another method or argument, or ``bind_tools`` raises it.
        """
        kwargs.pop("strict", None)
        return structured(self, schema, method, include_raw, kwargs)

    def batch(
        self,
        inputs: list[LanguageModelInput],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[AIMessage]:
        """Answer several inputs, in steps that they share; ``max_concurrency`` is honoured."""
        many = min(len(inputs), MAX_CONCURRENCY) or 1
        if isinstance(config, list):
            config = [{"max_concurrency": many, **given} for given in config]
        else:
            config = {"max_concurrency": many, **(config or {})}
        return super().batch(inputs, config, return_exceptions=return_exceptions, **kwargs)

    def generate(
        self,
        messages: list[list[BaseMessage]],
        stop: list[str] | None = None,
        callbacks: Callbacks = None,
        **kwargs: Any,
    ) -> LLMResult:
        """Answer several lists of messages, in steps that they share.

        Runs, callbacks and errors are those of LangChain, which asks one after the other. So do
        these calls where a cache may answer some of them or a rate limiter spaces them.
        """
        if len(messages) < 2 or self._is_spaced():
            return super().generate(messages, stop, callbacks, **kwargs)
        ahead = CallsAhead(self._calls, self._asked_of(messages, stop, kwargs))
        token = _ahead.set(ahead)
        try:
            return super().generate(messages, stop, callbacks, **kwargs)
        finally:
            _ahead.reset(token)
            ahead.close()

    def _is_spaced(self) -> bool:
        may_be_cached = self.cache is not False and (self.cache or get_llm_cache() is not None)
        return bool(may_be_cached or self.rate_limiter)

    def _asked_of(
        self, messages: list[list[BaseMessage]], stop: list[str] | None, kwargs: dict[str, Any]
    ) -> Iterator[GenerationInput]:
        """Yield what will be asked up to the first that is refused, whose call will tell."""
        own = {name: value for name, value in kwargs.items() if name not in _OF_THE_RUN}
        for message in messages:
            try:
                yield self._asked(message, stop, dict(own))
            except Exception:
                return

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        request, ahead = self._asked(messages, stop, kwargs), _ahead.get()
        if ahead is not None and ahead.calls.holder is self:
            return self._result(ahead.generate(request))
        return self._result(self._calls.generate(request))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return self._result(await self._calls.agenerate(self._asked(messages, stop, kwargs)))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        pieces = self._calls.stream(self._asked(messages, stop, kwargs))
        with closing(cast("Any", pieces)):
            for piece in pieces:
                chunk = self._chunk(piece)
                if run_manager is not None and isinstance(piece, str):
                    run_manager.on_llm_new_token(piece, chunk=chunk)
                yield chunk

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        stream = await self._calls.astream(self._asked(messages, stop, kwargs))
        async with aclosing(cast("Any", stream)) as pieces:
            async for piece in pieces:
                chunk = self._chunk(piece)
                if run_manager is not None and isinstance(piece, str):
                    await run_manager.on_llm_new_token(piece, chunk=chunk)
                yield chunk

    @property
    def _calls(self) -> LocalCalls:
        return LocalCalls(self._llm, self, self.accelerator)

    def _asked(
        self, messages: Sequence[BaseMessage], stop: list[str] | None, kwargs: dict[str, Any]
    ) -> GenerationInput:
        documents = named_documents(kwargs.pop("documents", None))
        choice = kwargs.get("tool_choice")
        request = generation_input(
            messages, stop, kwargs.pop("max_tokens", self.max_tokens), self._sampling(kwargs)
        )
        self._calls.check_tools(request, choice)
        # Computed exactly, a prompt has no use for where they stand.
        model = self._calls.model
        if not model.reuses_texts:
            return request
        return locate_chunks(request, documents, paths_first=model.reuses_paths)

    def _sampling(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the options of a call: its own, known or not, before those of the model."""
        own = {name: getattr(self, name, None) for name in _SAMPLING}
        return {name: value for name, value in {**own, **kwargs}.items() if value is not None}

    def _result(self, output: GenerationOutput) -> ChatResult:
        message = AIMessage(content=output.text, **self._details(output))
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _chunk(self, piece: str | GenerationOutput) -> ChatGenerationChunk:
        if isinstance(piece, str):
            return ChatGenerationChunk(message=AIMessageChunk(content=piece))
        return ChatGenerationChunk(message=AIMessageChunk(content="", **self._details(piece)))

    def _details(self, output: GenerationOutput) -> dict[str, Any]:
        return {
            "usage_metadata": usage_of(output),
            "response_metadata": self._metadata(output),
            **calls_of(output),
        }

    def _metadata(self, output: GenerationOutput) -> dict[str, Any]:
        found: dict[str, Any] = {
            "model_name": self._llm.name,
            "finish_reason": output.finish_reason,
            **self._calls.model.bounds.notes(output),
        }
        if output.logprobs:
            found["logprobs"] = [
                {"token": logprob.token, "logprob": logprob.logprob} for logprob in output.logprobs
            ]
        return found


def usage_of(output: GenerationOutput) -> UsageMetadata:
    """Return an output's token counts; what was not computed counts as read from a cache."""
    prompt, completion = output.prompt_tokens, output.completion_tokens
    use = output.use
    details = InputTokenDetails(cache_read=0 if use is None else use.from_prefix + use.from_chunks)
    return UsageMetadata(
        input_tokens=prompt,
        output_tokens=completion,
        total_tokens=prompt + completion,
        input_token_details=details,
    )


_ROLES: Mapping[str, Role] = {
    "system": "system",
    "human": "user",
    "ai": "assistant",
    "HumanMessageChunk": "user",
    "AIMessageChunk": "assistant",
    "SystemMessageChunk": "system",
    "tool": "tool",
}
#: options of a call that ask for what a local model cannot do
_REFUSED = ("functions", "function_call", "response_format")
_TOOLS = ("tools", "tool_choice")


def generation_input(
    messages: Sequence[BaseMessage],
    stop: str | Sequence[str] | None,
    max_tokens: int | None,
    options: Mapping[str, Any],
) -> GenerationInput:
    """Return a call as engines take it.

    Raises:
        ConfigError: messages or options that a local model cannot take.
    """
    for name in _REFUSED:
        if options.get(name):
            raise ConfigError(
                "a local model is not bound to a schema",
                where=f"ChatRagAccel, {name}",
                found=name,
                valid="a call without it",
                hint="use bind_tools or with_structured_output",
            )
    turns = tuple(_turn(message, at) for at, message in enumerate(messages))
    known = {name: value for name, value in options.items() if name not in (*_REFUSED, *_TOOLS)}
    tools = tuple(options.get("tools") or ())
    return GenerationInput(turns, stop_strings(stop), max_tokens, known, tools=tools)


def _turn(message: BaseMessage, at: int) -> Message:
    role = _ROLES.get(message.type)
    if role is None:
        raise ConfigError(
            "a local model takes system, human, AI and tool messages of text",
            where=f"ChatRagAccel, message {at + 1}",
            found=f"{message.type} message",
            valid="system | human | ai | tool",
        )
    content = message.content
    if not isinstance(content, str):
        for block in content:
            if isinstance(block, dict) and block.get("type") != "text":
                raise ConfigError(
                    "a local model takes text only",
                    where=f"ChatRagAccel, message {at + 1}",
                    found=f"content of type {block.get('type')!r}",
                    valid="text",
                )
    calls = tuple(
        ToolCall(call["id"] or "", call["name"], json.dumps(call["args"], ensure_ascii=False))
        for call in getattr(message, "tool_calls", ())
    )
    return Message(role, str(message.text), calls, getattr(message, "tool_call_id", ""))


def calls_of(output: GenerationOutput) -> dict[str, Any]:
    """Return the calls of an answer as fields of an ``AIMessage``.

    LangChain completes an object that it joins from chunks, and takes it for a call. So a malformed
    one is given behind the separator of calls.
    """
    fault = "no JSON object with a name and an object of arguments"
    return {
        "tool_calls": [
            tool_call(name=call.name, args=json.loads(call.arguments), id=call.id)
            for call in output.tool_calls
        ],
        "invalid_tool_calls": [
            invalid_tool_call(name=None, args=f"; {text}", id=None, error=fault)
            for text in output.malformed_calls
        ],
    }


def named_documents(given: Any) -> list[tuple[str, str]]:
    """Return the id and the text of documents that a call names.

    Raises:
        ConfigError: something else than texts and documents.
    """
    found: list[tuple[str, str]] = []
    for at, one in enumerate(several_documents(given, "ChatRagAccel")):
        if isinstance(one, Document):
            found.append((str(one.id or at), one.page_content))
        elif isinstance(one, str):
            found.append((str(at), one))
        else:
            raise ConfigError(
                "documents are texts or LangChain's documents",
                where=f"ChatRagAccel, documents[{at}]",
                found=type(one).__name__,
                valid="str | Document",
            )
    return found
