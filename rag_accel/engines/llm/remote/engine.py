"""Decoding on any server that speaks the OpenAI chat protocol, as an owned engine.

The engine keeps an asyncio loop in a thread of its own; its methods only hand work over to that
loop and collect what came back. Speculation is off: tokens of a remote server cost money.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rag_accel.engine_api import (
    Capability,
    EngineBase,
    EngineOutput,
    EngineProfile,
    EngineRequest,
    GenerationInput,
    OutputKind,
    PrimitiveKind,
    StepBudget,
    WorkId,
)
from rag_accel.engines.http.errors import Secret, check_base_url
from rag_accel.engines.http.loop_thread import LoopThread
from rag_accel.engines.http.options import RemoteOptions
from rag_accel.engines.llm.remote.chat_client import ChatCall, ChatClient
from rag_accel.engines.llm.remote.completions import request_body
from rag_accel.engines.outbox import Outbox
from rag_accel.errors import ClosedError, EngineError, RemoteEngineError

if TYPE_CHECKING:
    import httpx2


@dataclass(slots=True, eq=False)
class _Job:
    """One submitted request while it is in flight. Equal only to itself."""

    id: WorkId
    call: ChatCall
    task: asyncio.Task[None] | None = None


_Report = tuple[_Job, EngineOutput]


class OpenAICompatibleEngine(EngineBase):
    """An engine for DECODING over HTTP.

    Args:
        base_url: such as ``http://localhost:8000/v1``; without credentials or query.
        model: name the server knows.
        api_key: sent as a bearer token; never shown in any repr, error or log.
        options: limits, timeouts, retries.
        transport: httpx2 transport to use instead of the network's.

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
    ) -> None:
        self._model = model
        self._options = options or RemoteOptions()
        self._client = ChatClient(
            check_base_url(base_url),
            Secret(api_key) if api_key else None,
            self._options,
            transport=transport,
        )
        self._profile = _profile(self._options.concurrency)
        self._thread = LoopThread("openai-compatible-engine")
        self._slots = asyncio.Semaphore(self._options.concurrency)
        self._tasks: set[asyncio.Task[None]] = set()
        self._outbox: Outbox[_Report] = Outbox()
        self._rejected: list[EngineOutput] = []
        self._jobs: dict[WorkId, _Job] = {}
        self._is_started = False
        self._closed = False

    def __repr__(self) -> str:
        return f"OpenAICompatibleEngine({self._client.endpoint!r}, model={self._model!r})"

    @property
    def profile(self) -> EngineProfile:
        return self._profile

    def submit(self, work: Sequence[EngineRequest]) -> None:
        """Start requests; those beyond the concurrency limit wait for a free slot."""
        if self._closed:
            raise ClosedError("the engine is closed", where=self._client.endpoint)
        accepted: list[_Job] = []
        for request in work:
            try:
                job = self._job(request)
            except Exception as exc:
                # One bad item must not reject its neighbours.
                self._rejected.append(EngineOutput(request.id, "error", error=exc))
            else:
                self._jobs[request.id] = job
                accepted.append(job)
        if accepted:
            self._thread.start()
            self._is_started = True
            self._thread.post(self._launch, accepted)

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        """Wait up to ``budget.time_s`` for answers or text, or until interrupted."""
        outputs, self._rejected = self._rejected, []
        if not self._jobs:
            return outputs
        for job, output in self._outbox.take(0.0 if outputs else budget.time_s):
            if self._jobs.get(job.id) is not job:
                continue  # cancelled after it was reported
            if output.kind in ("final", "error"):
                del self._jobs[job.id]
            outputs.append(output)
        return outputs

    def cancel(self, ids: Sequence[WorkId]) -> None:
        """Drop requests; a running one's connection is closed."""
        gone = set(ids)
        self._rejected = [output for output in self._rejected if output.id not in gone]
        jobs = [self._jobs.pop(id) for id in gone if id in self._jobs]
        if jobs:
            self._thread.post(_abort, jobs)

    def interrupt(self) -> None:
        self._outbox.interrupt()

    def close(self) -> None:
        """Drop requests in flight, close all connections and end the thread; idempotent."""
        if self._is_started and not self._closed:
            self._thread.call(self._shut_down()).result()
        self._closed = True
        self._jobs.clear()
        self._thread.close()

    def _job(self, request: EngineRequest) -> _Job:
        if request.kind is not PrimitiveKind.DECODING:
            raise self._refusal("kind not executed here", request.kind, PrimitiveKind.DECODING)
        if not isinstance(request.payload, GenerationInput):
            found = type(request.payload).__name__
            raise self._refusal("payload of a wrong type", found, "GenerationInput")
        if request.handle is not None:
            raise self._refusal("unknown handle", request.handle, "no handle: servers keep none")
        if request.id in self._jobs:
            raise self._refusal("id of unfinished work used again", request.id, "a fresh id")
        body = request_body(
            request.payload,
            self._model,
            stream=request.stream,
            stream_usage=self._options.stream_usage,
        )
        return _Job(request.id, ChatCall(body, request.stream))

    def _refusal(self, what: str, found: object, valid: str) -> EngineError:
        return EngineError(what, where=self._client.endpoint, found=found, valid=valid)

    def _launch(self, jobs: Sequence[_Job]) -> None:
        for job in jobs:
            job.task = asyncio.ensure_future(self._run(job))
            self._tasks.add(job.task)
            job.task.add_done_callback(self._tasks.discard)

    async def _run(self, job: _Job) -> None:
        def emit(text: str) -> None:
            self._report(job, "partial", text)

        try:
            async with self._slots:
                output = await self._client.complete(job.call, emit)
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


def _abort(jobs: Sequence[_Job]) -> None:
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
