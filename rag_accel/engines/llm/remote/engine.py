"""Decoding on any server that speaks the OpenAI chat protocol, as an owned engine.

The engine keeps an asyncio loop in a thread of its own; its methods only hand work over to that
loop and collect what came back. Speculation is off: tokens of a remote server cost money.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rag_accel.clock import Clock
from rag_accel.engine_api import (
    Capability,
    EngineOutput,
    EngineProfile,
    EngineRequest,
    GenerationInput,
    OutputKind,
    PrimitiveKind,
    WorkId,
)
from rag_accel.engines.bases import OutboxEngine
from rag_accel.engines.http.errors import Secret, check_base_url
from rag_accel.engines.http.loop_thread import LoopThread
from rag_accel.engines.http.options import RemoteOptions
from rag_accel.engines.llm.remote.chat_client import ChatCall, ChatClient
from rag_accel.engines.llm.remote.completions import request_body
from rag_accel.engines.llm.remote.vllm_requests import VllmRequests, VllmServerCall
from rag_accel.engines.llm.remote.vllm_server_options import VllmServerOptions
from rag_accel.errors import RemoteEngineError

if TYPE_CHECKING:
    import httpx2


@dataclass(slots=True, eq=False)
class _Job:
    """One submitted request while it is in flight. Equal only to itself."""

    id: WorkId
    call: ChatCall
    vllm: VllmServerCall | None = None
    task: asyncio.Task[None] | None = None


_Report = tuple[_Job, EngineOutput]


class OpenAICompatibleEngine(OutboxEngine[_Job, _Report]):
    """An engine for DECODING over HTTP.

    Args:
        base_url: such as ``http://localhost:8000/v1``; without credentials or query.
        model: name the server knows.
        api_key: sent as a bearer token; never shown in any repr, error or log.
        options: limits, timeouts, retries.
        transport: httpx2 transport to use instead of the network's.
        vllm: what a server of vLLM's is told besides; which server is one, is asked once.
        clock: is that of ``EngineRequest.deadline``.

    Raises ConfigError on a bad URL or key and ImportError without openai.
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
        clock: Clock | None = None,
    ) -> None:
        self._model = model
        self._options = options or RemoteOptions()
        self._client = ChatClient(
            check_base_url(base_url),
            Secret(api_key) if api_key else None,
            self._options,
            transport=transport,
        )
        super().__init__(_profile(self._options.concurrency), self._client.endpoint)
        self._vllm = VllmRequests(self._client, model, vllm or VllmServerOptions(), clock)
        self._thread = LoopThread("openai-compatible-engine")
        self._slots = asyncio.Semaphore(self._options.concurrency)
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_started = False

    def __repr__(self) -> str:
        return f"OpenAICompatibleEngine({self._client.endpoint!r}, model={self._model!r})"

    def close(self) -> None:
        """Drop requests in flight, close all connections and end the thread; idempotent."""
        if self._is_started and not self._closed:
            self._thread.call(self._shut_down()).result()
        self._closed = True
        self._jobs.clear()
        self._thread.close()

    def _job(self, request: EngineRequest) -> _Job:
        payload = self._checked_payload(request, GenerationInput, self._jobs)
        if request.handle is not None:
            raise self._refusal("unknown handle", request.handle, "no handle: servers keep none")
        stream_usage = self._options.stream_usage
        body = request_body(payload, self._model, stream=request.stream, stream_usage=stream_usage)
        call = ChatCall(body, request.stream)
        return _Job(request.id, call, self._vllm.call_of(request, stream_usage))

    def _start(self, jobs: Sequence[_Job]) -> None:
        """Start requests; those beyond the concurrency limit wait for a free slot."""
        self._thread.start()
        self._is_started = True
        self._thread.post(self._launch, jobs)

    def _launch(self, jobs: Sequence[_Job]) -> None:
        for job in jobs:
            job.task = asyncio.ensure_future(self._run(job))
            self._tasks.add(job.task)
            job.task.add_done_callback(self._tasks.discard)

    def _abort(self, jobs: Sequence[_Job]) -> None:
        self._thread.post(_close_connections, jobs)

    def _outputs_of(self, report: _Report) -> Sequence[EngineOutput]:
        job, output = report
        if self._jobs.get(job.id) is not job:
            return ()  # cancelled after it was reported
        if output.kind in ("final", "error"):
            del self._jobs[job.id]
        return (output,)

    async def _run(self, job: _Job) -> None:
        def emit(text: str) -> None:
            self._report(job, "partial", text)

        try:
            async with self._slots:
                if job.vllm is None:
                    output = await self._client.complete(job.call, emit)
                else:
                    output = await self._vllm.complete(job.call, job.vllm, emit)
        except RemoteEngineError as exc:
            self._report(job, "error", error=exc)
        except BaseException as exc:
            # Whatever ends it: unreported work would be waited for without end. Cancelled
            # work is forgotten already: this report of it is not seen.
            self._report(job, "error", error=self._client.describe(exc))
        else:
            self._report(job, "final", output)

    def _report(
        self, job: _Job, kind: OutputKind, value: object = None, error: Exception | None = None
    ) -> None:
        output = EngineOutput(job.id, kind, value, error=error)
        self._outbox.put([(job, output)])

    async def _shut_down(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.aclose()


def _close_connections(jobs: Sequence[_Job]) -> None:
    for job in jobs:
        if job.task is not None:
            job.task.cancel()


def _profile(concurrency: int) -> EngineProfile:
    return EngineProfile(
        kinds=frozenset({PrimitiveKind.DECODING}),
        max_batch=concurrency,
        max_threads=0,
        stepped=True,
        interruptible=True,
        capabilities=frozenset({Capability.STREAM, Capability.BOUNDS_ITS_WORK}),
    )
