"""A language model on this machine as a LlamaIndex LLM whose calls share an engine."""

from __future__ import annotations

import json
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, closing
from typing import Annotated, Any, ClassVar, TypeVar, cast

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
    LLMMetadata,
    MessageRole,
    TextBlock,
    ToolCallBlock,
)
from llama_index.core.bridge.pydantic import Field, PrivateAttr
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.schema import BaseNode, NodeWithScore
from llama_index.core.tools.types import BaseTool
from llama_index.core.types import PydanticProgramMode
from pydantic import BeforeValidator

from rag_accel.accelerator import Accelerator
from rag_accel.accelerator.preparation import EngineAt
from rag_accel.adoption.local_calls import LocalCalls, component_llm
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
from rag_accel_adapters.llama_index.documents import documents_in

T = TypeVar("T")

#: Fields as they are given: what could merely be read as a number is refused, as in calls.
Whole = Annotated[int, BeforeValidator(whole_number)]
Number = Annotated[float, BeforeValidator(number)]

_ROLES: Mapping[MessageRole, Role] = {
    MessageRole.SYSTEM: "system",
    MessageRole.USER: "user",
    MessageRole.ASSISTANT: "assistant",
    MessageRole.TOOL: "tool",
}
_SAMPLING = ("temperature", "top_p", "top_k", "seed")
#: arguments of the class that are no fields
_NO_FIELDS = ("model", "tokenizer", "chat_template", "accelerator")
_OWN = frozenset({"formatted", "stop", "max_tokens", "documents", "tools", "tool_choice"})


class RagAccelLLM(FunctionCallingLLM):
    """An LLM of Hugging Face's that runs here, in steps that concurrent callers share.

    Without sampling options it gives the most probable tokens: in float32, the text that
    ``generate`` gives. ``complete`` asks with its prompt as the only message of a chat.

    Agents call functions with it where its chat template takes tools; nothing forces it to call
    one, not even ``tool_required``. Structured output is read from its text, by LlamaIndex's
    programs of the mode ``llm``, unless ``pydantic_program_mode`` names another.

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
        stop: strings that end an answer, or one.
        chat_template: a template in place of the tokenizer's.
        bounds: those of a ``LocalLLM``, which says what holds for those not named: ``pool_bytes``,
            ``prefix_lanes``, ``kv_reuse``, ``recompute_ratio``, ``chunk_bytes``, ``kv_folder``,
            ``kv_disk_bytes``, ``kv_max_age_s``, ``kv_recipe``, ``runner`` and ``weights``. Reused
            texts are known where a search of the same accelerated run found them, or where a call
            names them: ``chat(messages, documents=nodes)``.
        accelerator: schedules the work; by default the current run's, else the process default.
        arguments: fields of ``LLM``, such as its system prompt.

    Raises:
        ConfigError: an argument that it does not have, or a model that is not supported, or not
            proved to give what transformers gives.
    """

    __rag_accel_scheduled__: ClassVar[bool] = True

    max_tokens: Whole = Field(default=256, description="Most tokens of an answer.", gt=0)
    dtype: str | None = Field(default=None, description="What the model computes in.")
    temperature: Number | None = Field(default=None, description="0 for the likeliest token.")
    top_p: Number | None = Field(default=None, description="Probability that is kept.")
    top_k: Whole | None = Field(default=None, description="How many tokens are kept.")
    seed: Whole | None = Field(default=None, description="Seed of each call.")
    pool_bytes: Whole | None = Field(default=None, description="Bytes of keys and values.", gt=0)
    prefix_lanes: Whole | None = Field(default=None, description="Prompts kept.", ge=0)
    kv_reuse: KvReuse | None = Field(default=None, description="How retrieved texts are computed.")
    recompute_ratio: Number | None = Field(
        default=None, description="Share of them computed again.", ge=0, le=1
    )
    chunk_bytes: Whole | None = Field(default=None, description="Bytes kept of texts.", ge=0)
    kv_folder: str | None = Field(default=None, description="Where texts are kept.")
    kv_disk_bytes: Whole | None = Field(default=None, description="Bytes of files.", ge=0)
    kv_max_age_s: Number | None = Field(default=None, description="Seconds kept.", ge=0)
    kv_recipe: KvRecipe | None = Field(default=None, description="Which state of a text is read.")
    runner: RunnerName | None = Field(default=None, description="What computes the model.")
    weights: WeightsName | None = Field(default=None, description="Its own, or int8.")
    stop: list[str] = Field(default_factory=list, description="What ends an answer.")
    pydantic_program_mode: PydanticProgramMode = PydanticProgramMode.LLM

    _llm: NamedLLM = PrivateAttr()
    _accelerator: Accelerator | None = PrivateAttr(default=None)

    def __init__(
        self,
        model: Any,
        *,
        tokenizer: Any = None,
        dtype: str | None = None,
        chat_template: str | None = None,
        accelerator: Accelerator | None = None,
        **arguments: Any,
    ) -> None:
        refuse_unknown(type(self), arguments, *_NO_FIELDS)
        if isinstance(arguments.get("stop"), str):
            arguments["stop"] = [arguments["stop"]]
        super().__init__(**{"dtype": dtype, **arguments})
        self._llm = component_llm(
            *(model, tokenizer), dtype=dtype, chat_template=chat_template, **named_bounds(self)
        )
        self._accelerator = accelerator

    @classmethod
    def class_name(cls) -> str:
        """Return the name it is serialised under."""
        return "RagAccelLLM"

    @property
    def metadata(self) -> LLMMetadata:
        """Return the limits of the model."""
        return LLMMetadata(
            context_window=self._llm.context,
            num_output=self.max_tokens,
            is_chat_model=True,
            is_function_calling_model=self._calls.takes_tools,
            model_name=self._llm.name,
        )

    def scheduled_by(self, accelerator: Accelerator) -> RagAccelLLM:
        """Return the same model on another accelerator."""
        made = self.model_copy()
        made._llm, made._accelerator = self._llm, accelerator
        return made

    def explain_on(self, accelerator: Accelerator) -> str:
        """Return how an accelerator runs its calls."""
        return self._calls.describe(self._accelerator or accelerator)

    def prepared_engine(self, accelerator: Accelerator) -> EngineAt | None:
        """Return the engine of the model, loaded; on an accelerator unless it has its own."""
        return self._calls.prepared_engine(self._accelerator or accelerator)

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Answer a chat."""
        return self._chat_response(self._calls.generate(self._asked(messages, kwargs)))

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Answer a chat without blocking the loop."""
        return self._chat_response(await self._calls.agenerate(self._asked(messages, kwargs)))

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        """Answer a chat, as the text comes."""
        return _read(self._calls.stream(self._asked(messages, kwargs)), self._chat_piece)

    @llm_chat_callback()
    async def astream_chat(
        self, messages: Sequence[ChatMessage], **kwargs: Any
    ) -> ChatResponseAsyncGen:
        """Answer a chat, as the text comes, without blocking the loop."""
        stream = await self._calls.astream(self._asked(messages, kwargs))
        return _aread(stream, self._chat_piece)

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Answer a prompt."""
        return self._completion(self._calls.generate(self._prompted(prompt, kwargs)))

    @llm_completion_callback()
    async def acomplete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponse:
        """Answer a prompt without blocking the loop."""
        return self._completion(await self._calls.agenerate(self._prompted(prompt, kwargs)))

    @llm_completion_callback()
    def stream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponseGen:
        """Answer a prompt, as the text comes."""
        return _read(self._calls.stream(self._prompted(prompt, kwargs)), self._completion_piece)

    @llm_completion_callback()
    async def astream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponseAsyncGen:
        """Answer a prompt, as the text comes, without blocking the loop."""
        stream = await self._calls.astream(self._prompted(prompt, kwargs))
        return _aread(stream, self._completion_piece)

    def get_tool_calls_from_response(
        self, response: ChatResponse, error_on_no_tool_call: bool = True, **kwargs: Any
    ) -> list[ToolSelection]:
        """Return the calls of tools in an answer.

        Raises:
            ValueError: there are none, and ``error_on_no_tool_call`` is set.
        """
        calls = [block for block in response.message.blocks if isinstance(block, ToolCallBlock)]
        if not calls and error_on_no_tool_call:
            raise ValueError(f"the answer calls no tool: {response.message.content!r}")
        return [
            ToolSelection(
                tool_id=call.tool_call_id or "",
                tool_name=call.tool_name,
                tool_kwargs=cast("dict[str, Any]", call.tool_kwargs),
            )
            for call in calls
        ]

    def _prepare_chat_with_tools(
        self,
        tools: Sequence[BaseTool],
        user_msg: str | ChatMessage | None = None,
        chat_history: list[ChatMessage] | None = None,
        verbose: bool = False,
        allow_parallel_tool_calls: bool = False,
        tool_required: bool = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        asked = ChatMessage(user_msg) if isinstance(user_msg, str) else user_msg
        return {
            "messages": [*(chat_history or ()), *([] if asked is None else [asked])],
            "tools": [tool.metadata.to_openai_tool(skip_length_check=True) for tool in tools],
            **kwargs,
        }

    def _validate_chat_with_tools_response(
        self,
        response: ChatResponse,
        tools: Sequence[BaseTool],
        allow_parallel_tool_calls: bool = False,
        **kwargs: Any,
    ) -> ChatResponse:
        """Leave one call in an answer, unless several are allowed."""
        blocks = response.message.blocks
        if not allow_parallel_tool_calls:
            del blocks[2:]  # its text comes first, and then its calls
        return response

    @property
    def _calls(self) -> LocalCalls:
        return LocalCalls(self._llm, self, self._accelerator)

    def _prompted(self, prompt: str, kwargs: Mapping[str, Any]) -> GenerationInput:
        return self._asked([ChatMessage(role=MessageRole.USER, content=prompt)], kwargs)

    def _asked(self, messages: Sequence[ChatMessage], kwargs: Mapping[str, Any]) -> GenerationInput:
        own = {name: getattr(self, name) for name in _SAMPLING}
        options = {**own, **{name: kwargs[name] for name in kwargs if name not in _OWN}}
        documents = named_documents(kwargs.get("documents"))
        request = GenerationInput(
            tuple(_turn(message, at) for at, message in enumerate(messages)),
            stop_strings(kwargs.get("stop") or self.stop),
            kwargs.get("max_tokens", self.max_tokens),
            {name: value for name, value in options.items() if value is not None},
            tools=tuple(kwargs.get("tools") or ()),
        )
        self._calls.check_tools(request, kwargs.get("tool_choice"))
        # Computed exactly, a prompt has no use for where they stand.
        model = self._calls.model
        if not model.reuses_texts:
            return request
        return locate_chunks(request, documents, paths_first=model.reuses_paths)

    def _chat_response(self, output: GenerationOutput) -> ChatResponse:
        message = ChatMessage(role=MessageRole.ASSISTANT, content=output.text)
        message.blocks += map(_block, output.tool_calls)
        return ChatResponse(message=message, additional_kwargs=self._notes(output), raw=output)

    def _chat_piece(self, piece: str | GenerationOutput, text: str) -> ChatResponse:
        if isinstance(piece, str):
            message = ChatMessage(role=MessageRole.ASSISTANT, content=text)
            return ChatResponse(message=message, delta=piece)
        return self._chat_response(piece).model_copy(update={"delta": ""})

    def _completion(self, output: GenerationOutput) -> CompletionResponse:
        notes = self._notes(output)
        return CompletionResponse(text=output.text, additional_kwargs=notes, raw=output)

    def _completion_piece(self, piece: str | GenerationOutput, text: str) -> CompletionResponse:
        if isinstance(piece, str):
            return CompletionResponse(text=text, delta=piece)
        notes = self._notes(piece)
        return CompletionResponse(text=text, delta="", additional_kwargs=notes, raw=piece)

    def _notes(self, output: GenerationOutput) -> dict[str, Any]:
        """Return token counts as LlamaIndex's own models name them, and what is approximate."""
        prompt, completion = output.prompt_tokens, output.completion_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            **self._calls.model.bounds.notes(output),
        }


def _block(call: ToolCall) -> ToolCallBlock:
    kwargs = json.loads(call.arguments)
    return ToolCallBlock(tool_call_id=call.id, tool_name=call.name, tool_kwargs=kwargs)


def _turn(message: ChatMessage, at: int) -> Message:
    role = _ROLES.get(message.role)
    known = (TextBlock, ToolCallBlock) if role == "assistant" else TextBlock
    strange = next((block for block in message.blocks if not isinstance(block, known)), None)
    if role is None or strange is not None:
        raise ConfigError(
            "a local model takes messages of text, and of tool calls from an assistant",
            where=f"RagAccelLLM, message {at + 1}",
            found=f"role {message.role.value!r}" if role is None else type(strange).__name__,
            valid="system | user | assistant | tool, of text",
        )
    calls = (block for block in message.blocks if isinstance(block, ToolCallBlock))
    return Message(
        role,
        message.content or "",
        tuple(ToolCall(call.tool_call_id or "", call.tool_name, _json(call)) for call in calls),
        str(message.additional_kwargs.get("tool_call_id", "")) if role == "tool" else "",
    )


def _json(call: ToolCallBlock) -> str:
    given = call.tool_kwargs
    return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)


Piece = str | GenerationOutput


def _read(stream: Iterator[Piece], read: Callable[[Piece, str], T]) -> Generator[T, None, None]:
    """Yield what is read of each piece and of the text up to it; closing this closes the stream."""
    text = ""
    with closing(cast("Any", stream)):
        for piece in stream:
            text += piece if isinstance(piece, str) else ""
            yield read(piece, text)


async def _aread(
    stream: AsyncIterator[Piece], read: Callable[[Piece, str], T]
) -> AsyncGenerator[T, None]:
    """Do as ``_read`` without blocking the loop."""
    text = ""
    async with aclosing(cast("Any", stream)):
        async for piece in stream:
            text += piece if isinstance(piece, str) else ""
            yield read(piece, text)


def named_documents(given: Any) -> list[tuple[str, str]]:
    """Return the id and the texts of what a call names: with its lines of metadata, and without.

    Raises:
        ConfigError: something else than texts, nodes and nodes with scores.
    """
    found: list[tuple[str, str]] = []
    for at, one in enumerate(several_documents(given, "RagAccelLLM")):
        if isinstance(one, BaseNode | NodeWithScore):
            found += documents_in([one])
        elif isinstance(one, str):
            found.append((str(at), one))
        else:
            raise ConfigError(
                "documents are texts or LlamaIndex's nodes",
                where=f"RagAccelLLM, documents[{at}]",
                found=type(one).__name__,
                valid="str | BaseNode | NodeWithScore",
            )
    return found
