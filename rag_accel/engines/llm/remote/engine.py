"""Decoding on any server that speaks the OpenAI chat protocol, as an owned engine.

The engine keeps an asyncio loop in a thread of its own; its methods only hand work over to that
loop and collect what came back. Speculation is off: tokens of a remote server cost money.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rag_accel.clock import Clock, MonotonicClock
from rag_accel.engine_api import (
    Capability,
    EngineProfile,
    EngineRequest,
    GenerationInput,
    GenerationOutput,
    PrimitiveKind,
    PromptUse,
)
from rag_accel.engines.http.call_engine import HttpCallEngine
from rag_accel.engines.http.errors import Secret, check_base_url
from rag_accel.engines.http.options import RemoteOptions
from rag_accel.engines.llm.remote.chat_client import ChatCall, ChatClient
from rag_accel.engines.llm.remote.completions import request_body
from rag_accel.engines.llm.remote.early_prompts import (
    check_early,
    early_request,
    is_early,
    require_free,
)
from rag_accel.engines.llm.remote.servers import SERVERS
from rag_accel.engines.llm.remote.vllm_requests import VllmRequests, VllmServerCall
from rag_accel.engines.llm.remote.vllm_server_options import VllmServerOptions
from rag_accel.errors import RemoteEngineError

if TYPE_CHECKING:
    import httpx2


@dataclass(frozen=True, slots=True)
class _Completion:
    """A request as any server is sent it, and as one of vLLM's is."""

    call: ChatCall
    vllm: VllmServerCall | None


class OpenAICompatibleEngine(HttpCallEngine[_Completion]):
    """An engine for DECODING over HTTP, and with ``early`` for beginnings of its prompts.

    Args:
        base_url: such as ``http://localhost:8000/v1``; without credentials or query.
        model: name the server knows.
        api_key: sent as a bearer token; never shown in any repr, error or log.
        options: limits, timeouts, retries.
        transport: httpx2 transport to use instead of the network's.
        vllm: what a server of vLLM's is told besides; which server is one, is asked once.
        early: whether the server is also sent beginnings of prompts that are not whole yet
            (PARTIAL_PREFILLING), so that its prefix cache has them.
        clock: is that of ``EngineRequest.deadline``.

    Raises ConfigError on a bad URL or key or an ``early`` that cannot be, and ImportError without
    openai.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        options: RemoteOptions | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
        vllm: VllmServerOptions | None = None,
        early: bool = False,
        clock: Clock | None = None,
    ) -> None:
        vllm = vllm or VllmServerOptions()
        check_early(early, vllm, [base_url], "OpenAICompatibleEngine")
        self._model = model
        self._clock = clock or MonotonicClock()
        self._options = options or RemoteOptions()
        self._client = ChatClient(
            check_base_url(base_url),
            Secret(api_key) if api_key else None,
            self._options,
            transport=transport,
            on_refusal=self._note_refusal,
        )
        concurrency = self._options.concurrency
        name = "openai-compatible-engine"
        super().__init__(_profile(concurrency, early), self._client.endpoint, concurrency, name)
        self._vllm = VllmRequests(self._client, model, vllm, self._clock)

    def __repr__(self) -> str:
        return f"OpenAICompatibleEngine({self._client.endpoint!r}, model={self._model!r})"

    def _call_of(self, request: EngineRequest) -> _Completion:
        payload = self._checked_payload(request, GenerationInput, self._jobs)
        if request.handle is not None:
            raise self._refusal("unknown handle", request.handle, "no handle: servers keep none")
        only_prompt = is_early(request)
        if only_prompt:
            require_free(self._client.base_url, bool(self._jobs), self._clock.now())
            request = early_request(request)
            payload = request.payload
        stream_usage = self._options.stream_usage
        body = request_body(payload, self._model, stream=request.stream, stream_usage=stream_usage)
        call = ChatCall(body, request.stream, not request.is_retried, only_prompt)
        return _Completion(call, self._vllm.call_of(request, stream_usage))

    async def _answer(
        self, call: _Completion, emit: Callable[[str], None]
    ) -> GenerationOutput | PromptUse | None:
        if call.vllm is None:
            output = await self._client.complete(call.call, emit)
        else:
            output = await self._vllm.complete(call.call, call.vllm, emit)
        return output.use if call.call.only_prompt else output

    def _note_refusal(self) -> None:
        server = SERVERS.get(self._client.base_url)
        if server is not None:
            server.refused_at = self._clock.now()

    def _describe(self, error: BaseException) -> RemoteEngineError:
        return self._client.describe(error)

    async def _close_client(self) -> None:
        await self._client.aclose()


def _profile(concurrency: int, early: bool) -> EngineProfile:
    kinds = {PrimitiveKind.DECODING} | ({PrimitiveKind.PARTIAL_PREFILLING} if early else set())
    return EngineProfile(
        kinds=frozenset(kinds),
        max_batch=concurrency,
        max_threads=0,
        stepped=True,
        interruptible=True,
        capabilities=frozenset({Capability.STREAM, Capability.BOUNDS_ITS_WORK}),
    )
