"""A base of engines whose every work is one call of a server."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rag_accel.engine_api import EngineOutput, EngineProfile, EngineRequest, OutputKind, WorkId
from rag_accel.engines.bases import OutboxEngine
from rag_accel.engines.http.loop_thread import LoopThread
from rag_accel.errors import RagAccelError
from rag_accel.telemetry.spans import sending_trace

CallT = TypeVar("CallT")


@dataclass(slots=True, eq=False)
class HttpJob(Generic[CallT]):
    """One submitted request while it is in flight. Equal only to itself."""

    id: WorkId
    call: CallT
    trace: Mapping[str, str] | None = None
    task: asyncio.Task[None] | None = None


_Report = tuple[HttpJob[CallT], EngineOutput]


class HttpCallEngine(OutboxEngine[HttpJob[CallT], _Report[CallT]], Generic[CallT]):
    """An engine that keeps an asyncio loop in a thread of its own, on which all calls run.

    Its methods only hand work over to that loop and collect what came back.

    Args:
        profile: of the engine.
        endpoint: names the engine in its errors.
        concurrency: most calls in flight; further ones wait for a free place.
        name: of the thread.
    """

    def __init__(self, profile: EngineProfile, endpoint: str, concurrency: int, name: str) -> None:
        super().__init__(profile, endpoint)
        self._thread = LoopThread(name)
        self._slots = asyncio.Semaphore(concurrency)
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_started = False

    @abstractmethod
    def _call_of(self, request: EngineRequest) -> CallT:
        """Return the call of a request; whatever it raises refuses this request alone."""

    @abstractmethod
    async def _answer(self, call: CallT, emit: Callable[[str], None]) -> Any:
        """Make a call and return its value; ``emit`` takes the text of a streaming call."""

    @abstractmethod
    def _describe(self, error: BaseException) -> Exception:
        """Return what work ends with after an error that is none of this package."""

    @abstractmethod
    async def _close_client(self) -> None:
        """Close all connections."""

    def close(self) -> None:
        """Drop requests in flight, close all connections and end the thread; idempotent."""
        if self._closed or self._is_forked:
            return
        if self._is_started:
            self._thread.call(self._shut_down()).result()
        self._closed = True
        self._jobs.clear()
        self._thread.close()

    def _job(self, request: EngineRequest) -> HttpJob[CallT]:
        return HttpJob(request.id, self._call_of(request), request.trace)

    def _start(self, jobs: Sequence[HttpJob[CallT]]) -> None:
        self._thread.start()
        self._is_started = True
        self._thread.post(self._launch, jobs)

    def _launch(self, jobs: Sequence[HttpJob[CallT]]) -> None:
        for job in jobs:
            job.task = asyncio.ensure_future(self._run(job))
            self._tasks.add(job.task)
            job.task.add_done_callback(self._tasks.discard)

    def _abort(self, jobs: Sequence[HttpJob[CallT]]) -> None:
        self._thread.post(_close_connections, jobs)

    def _outputs_of(self, report: _Report[CallT]) -> Sequence[EngineOutput]:
        job, output = report
        if self._jobs.get(job.id) is not job:
            return ()  # cancelled after it was reported
        if output.kind in ("final", "error"):
            del self._jobs[job.id]
        return (output,)

    async def _run(self, job: HttpJob[CallT]) -> None:
        def emit(text: str) -> None:
            self._report(job, "partial", text)

        try:
            async with self._slots:
                with sending_trace(job.trace):
                    output = await self._answer(job.call, emit)
        except RagAccelError as exc:
            self._report(job, "error", error=exc)
        except BaseException as exc:
            # Whatever ends it: unreported work would be waited for without end. Cancelled
            # work is forgotten already: this report of it is not seen.
            self._report(job, "error", error=self._describe(exc))
        else:
            self._report(job, "final", output)

    def _report(
        self,
        job: HttpJob[CallT],
        kind: OutputKind,
        value: object = None,
        error: Exception | None = None,
    ) -> None:
        output = EngineOutput(job.id, kind, value, error=error)
        self._outbox.put([(job, output)])

    async def _shut_down(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._close_client()


def _close_connections(jobs: Sequence[HttpJob[Any]]) -> None:
    for job in jobs:
        if job.task is not None:
            job.task.cancel()
