"""Requests of one engine to a server that may be one of vLLM's."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rag_accel.clock import Clock, MonotonicClock
from rag_accel.engine_api import EngineRequest, GenerationOutput
from rag_accel.engines.llm.remote.chat_client import ChatCall, ChatClient, Emit
from rag_accel.engines.llm.remote.completions import request_body
from rag_accel.engines.llm.remote.server_load import ServerAdmission
from rag_accel.engines.llm.remote.servers import PROBE_S, SERVERS, ModelServer
from rag_accel.engines.llm.remote.vllm_server_options import VllmServerOptions
from rag_accel.errors import RemoteEngineError
from rag_accel.kv.reuse_request import ReuseRequest, namespace_salt


@dataclass(frozen=True, slots=True)
class VllmServerCall:
    """A request as a server of vLLM's is sent it.

    Args:
        request: the work.
        texts: what it is told of its texts, if anything.
        stream_usage: whether a stream asks for usage.
    """

    request: EngineRequest
    texts: ReuseRequest | None
    stream_usage: bool


class VllmRequests:
    """The requests of one engine, for use on its event loop but for ``call_of``.

    Args:
        client: sends them.
        model: name the server knows.
        options: of the fields.
        clock: is that of ``EngineRequest.deadline``; None for the operating system's.
    """

    def __init__(
        self, client: ChatClient, model: str, options: VllmServerOptions, clock: Clock | None
    ) -> None:
        self._client, self._model, self._options = client, model, options
        self._clock = clock or MonotonicClock()
        self._admission: ServerAdmission | None = None
        if options.most_waiting is not None:
            self._admission = ServerAdmission(
                client.metrics, options.most_waiting, self._clock, asyncio.sleep
            )

    def call_of(self, request: EngineRequest, stream_usage: bool) -> VllmServerCall | None:
        """Return a request as vLLM is sent it; None where all servers are sent the same."""
        if not self._options.asks:
            return None
        texts = self._options.texts_of(request)
        if texts is None and not self._options.priority and self._admission is None:
            return None
        return VllmServerCall(request, texts, stream_usage)

    async def complete(self, plain: ChatCall, call: VllmServerCall, emit: Emit) -> GenerationOutput:
        """Return the completion of a call, the plain one where the server is not vLLM's.

        Raises:
            RemoteEngineError: as ``ChatClient.complete`` does.
        """
        server = await self._known_server()
        if server is None or not server.is_vllm:
            return await self._client.complete(plain, emit)
        if self._admission is not None:
            await self._admission.room()
        texts = call.texts if server.takes_texts else None
        fields: dict[str, Any] = {} if texts is None else dict(texts.fields())
        salt = namespace_salt(call.request.namespace)
        if salt is not None and "cache_salt" not in call.request.payload.options:
            fields.setdefault("cache_salt", salt)  # no tenant finds another one's beginnings
        priority: Mapping[str, Any] = {}
        if server.takes_priority:
            priority = self._options.priority_of(call.request, self._clock.now())
        try:
            output = await self._sent(plain, call, {**fields, **priority}, emit)
        except RemoteEngineError as error:
            if not priority or not _refuses_priority(error):
                raise
            server.note_no_priority()
            output = await self._sent(plain, call, fields, emit)
        if texts is not None and not plain.stream:
            server.note_answer(output.use is not None, texts.texts)
        return output

    async def _sent(
        self, plain: ChatCall, call: VllmServerCall, fields: Mapping[str, Any], emit: Emit
    ) -> GenerationOutput:
        body = request_body(
            call.request.payload,
            self._model,
            stream=plain.stream,
            stream_usage=call.stream_usage,
            fields=fields,
        )
        return await self._client.complete(replace(plain, body=body), emit)

    async def _known_server(self) -> ModelServer | None:
        """Return the server, once it has said what it is or refused to."""
        server = SERVERS.get(self._client.base_url)
        if server is None or server.is_known:
            return server
        if not server.begins():
            await asyncio.to_thread(server.wait, PROBE_S)
            return server
        models: object = None
        try:
            models = await self._client.models()
        finally:  # also where the first call is cancelled: it was asked, and is not asked again
            server.note_models(models)
        return server


def _refuses_priority(error: RemoteEngineError) -> bool:
    """Tell whether a server refused a request for its priority: it was started without them."""
    return error.status == 400 and "priority" in str(error).lower()
