"""Answer one chat completion over HTTP from an emulated device, or with a scripted fault."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import deque
from contextlib import aclosing
from http import HTTPStatus
from typing import Any

from rag_accel.engine_api import GenerationOutput
from rag_accel.engines.llm.emulated import EmulatedDevice
from rag_accel.engines.llm.emulated_faults import Fault
from rag_accel.engines.llm.emulated_http import ResponseWriter
from rag_accel.engines.llm.emulated_openai import (
    ServedCall,
    chunk_json,
    completion_json,
    error_json,
    parse_call,
    usage_chunk_json,
)
from rag_accel.errors import ClosedError, ConfigError

_BROKEN_JSON = '{"choices": [{"index": 0, "mess'


class ChatService:
    """Turn request bodies into answers; every call takes the next scripted fault, if any."""

    def __init__(self, device: EmulatedDevice) -> None:
        self.num_calls = 0
        self._device = device
        self._faults: deque[Fault] = deque()
        self._numbers = itertools.count(1)

    def script(self, *faults: Fault) -> None:
        """Queue faults; may be called from any thread."""
        self._faults.extend(faults)

    async def answer(self, body: bytes, out: ResponseWriter) -> bool:
        """Answer one call; false says that the connection cannot be used again."""
        self.num_calls += 1
        fault = self._faults.popleft() if self._faults else None
        if fault is not None and fault.kind in ("drop", "status"):
            return await _refuse(fault, out)
        if fault is not None and fault.kind == "slow":
            await asyncio.sleep(fault.delay_s)
            fault = None
        try:
            call = parse_call(body)
            respond = self._stream if call.stream else self._whole
            return await respond(call, out, fault)
        except Exception as exc:
            return await _report(exc, out)

    async def _whole(self, call: ServedCall, out: ResponseWriter, fault: Fault | None) -> bool:
        output = await self._device.agenerate(call.request)
        if fault is None:
            await out.send_json(HTTPStatus.OK, completion_json(self._next_id(), call.model, output))
            return True
        missing = 64 if fault.kind == "truncate" else 0
        await out.send_body(HTTPStatus.OK, _BROKEN_JSON.encode(), missing_bytes=missing)
        return missing == 0

    async def _stream(self, call: ServedCall, out: ResponseWriter, fault: Fault | None) -> bool:
        events = _Events(self._next_id(), call, out)
        output: GenerationOutput | None = None
        async with aclosing(self._device.aupdates(call.request, stream=True)) as updates:
            async for update in updates:
                await events.open()
                if fault is not None and events.num_deltas >= fault.after_deltas:
                    return await events.break_off(fault)
                await events.send_delta(update.delta)
                output = update.output
        if fault is not None:
            return await events.break_off(fault)
        await events.finish(output)
        return True

    def _next_id(self) -> str:
        return f"chatcmpl-emulated-{next(self._numbers)}"


class _Events:
    """Write one streamed answer as the sequence of events OpenAI sends."""

    def __init__(self, id: str, call: ServedCall, out: ResponseWriter) -> None:
        self.num_deltas = 0
        self._id = id
        self._call = call
        self._out = out

    async def open(self) -> None:
        if not self._out.is_started:
            await self._out.start_events()
            await self._send(chunk_json(self._id, self._call.model, {"role": "assistant"}))

    async def send_delta(self, text: str) -> None:
        if text:
            await self._send(chunk_json(self._id, self._call.model, {"content": text}))
            self.num_deltas += 1

    async def finish(self, output: GenerationOutput | None) -> None:
        if output is not None:
            id, model = self._id, self._call.model
            await self._send(chunk_json(id, model, {}, output.finish_reason))
            if self._call.include_usage:
                await self._send(usage_chunk_json(id, model, output))
        await self._out.send_event("[DONE]")
        await self._out.end_events()

    async def break_off(self, fault: Fault) -> bool:
        if fault.kind == "malformed":
            await self._out.send_event(_BROKEN_JSON)
            await self._out.end_events()
        return False

    async def _send(self, event: dict[str, Any]) -> None:
        await self._out.send_event(json.dumps(event))


async def _refuse(fault: Fault, out: ResponseWriter) -> bool:
    if fault.kind == "drop":
        out.drop()
        return False
    headers = {} if fault.retry_after is None else {"retry-after": fault.retry_after}
    await out.send_json(fault.status, error_json(fault.message, "scripted_fault"), headers)
    return True


async def _report(error: Exception, out: ResponseWriter) -> bool:
    """Answer with the status of an error, or break off an answer that has begun."""
    if out.is_started:
        return False
    status, kind = HTTPStatus.INTERNAL_SERVER_ERROR, "server_error"
    if isinstance(error, ConfigError):
        status, kind = HTTPStatus.BAD_REQUEST, "invalid_request_error"
    elif isinstance(error, ClosedError):
        status, kind = HTTPStatus.SERVICE_UNAVAILABLE, "server_error"
    await out.send_json(status, error_json(str(error), kind))
    return True
