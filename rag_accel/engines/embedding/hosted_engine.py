"""Embedding on a server: texts of many requests in few calls, several calls in flight."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rag_accel.clock import Clock, MonotonicClock
from rag_accel.engine_api import (
    Capability,
    EngineBase,
    EngineOutput,
    EngineProfile,
    EngineRequest,
    PrimitiveKind,
    StepBudget,
    TextBatch,
    WorkId,
)
from rag_accel.engines.outbox import Outbox
from rag_accel.errors import ClosedError, EngineError, EngineOutputError

EmbedTexts = Callable[[list[str]], Sequence[Any]]
IsInputsFault = Callable[[Exception], bool]

#: HTTP statuses that say that something is wrong with what was sent
_INPUT_STATUSES = frozenset({400, 413, 422})


@dataclass(slots=True, eq=False)
class _TextsToSend:
    id: WorkId
    texts: tuple[str, ...]


_Call = list[_TextsToSend]
_Answer = tuple[_Call, "Sequence[Any] | Exception"]


class HostedEmbeddingEngine(EngineBase):
    """An embedding engine around a function that asks a server; queries and documents alike.

    The texts of requests that come within ``gather_s`` of one another go into one call, as long as
    they are at most ``max_batch``; ``max_calls`` calls are in flight at once, and what comes
    meanwhile waits for one to end. Where a call of several requests fails through what was sent,
    its halves are tried, so that only the request at fault ends in ``error``; any other error, such
    as a server that is not there, is that of all of them: each asking again would only add to it.

    Values are ``[len(texts), dim]``, float64: the numbers as the server sent them.

    Args:
        embed: called in threads of ours; it bounds its own time, and repeats what may pass.
        max_batch: texts in one call.
        max_calls: calls in flight.
        gather_s: seconds that the first request waits for others.
        is_inputs_fault: tells of an error whether what was sent is to blame; by default a
            ``ValueError``, ``TypeError`` or an HTTP ``status_code`` of 400, 413 or 422.
        clock: measures the gathering.
    """

    def __init__(
        self,
        embed: EmbedTexts,
        *,
        max_batch: int = 1000,
        max_calls: int = 4,
        gather_s: float = 0.003,
        is_inputs_fault: IsInputsFault | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._embed = embed
        self._max_calls = max_calls
        self._gather_s = gather_s
        self._is_inputs_fault = is_inputs_fault or _is_inputs_fault
        self._clock = clock or MonotonicClock()
        self._profile = EngineProfile(
            kinds=frozenset({PrimitiveKind.EMBEDDING}),
            max_batch=max_batch,
            max_threads=0,
            stepped=True,
            interruptible=True,
            capabilities=frozenset({Capability.BOUNDS_ITS_WORK}),
        )
        self._jobs: dict[WorkId, _TextsToSend] = {}
        #: not sent yet, and until when it waits for others
        self._waiting: list[_TextsToSend] = []
        self._gathers_until = 0.0
        #: halves of failed calls; they go first
        self._halves: list[_Call] = []
        self._num_calls = 0
        self._answers: Outbox[_Answer] = Outbox()
        self._rejected: list[EngineOutput] = []
        self._closed = False

    @property
    def profile(self) -> EngineProfile:
        """Return what this engine does."""
        return self._profile

    def submit(self, work: Sequence[EngineRequest]) -> None:
        """Let requests wait for the next call."""
        if self._closed:
            raise ClosedError("the engine is closed", where="HostedEmbeddingEngine")
        for request in work:
            try:
                job = _TextsToSend(request.id, self._texts(request))
            except Exception as exc:
                # One bad item must not reject its neighbours.
                self._rejected.append(EngineOutput(request.id, "error", error=exc))
                continue
            if not self._waiting:
                self._gathers_until = self._clock.now() + self._gather_s
            self._jobs[job.id] = job
            self._waiting.append(job)

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        """Start what is due, and wait up to ``budget.time_s`` for answers, or until interrupted."""
        outputs, self._rejected = self._rejected, []
        self._start_due()
        if not self._jobs:
            return outputs
        for call, answer in self._answers.take(0.0 if outputs else self._wait_s(budget.time_s)):
            self._num_calls -= 1
            outputs.extend(self._outcome(call, answer))
        self._start_due()
        return outputs

    def cancel(self, ids: Sequence[WorkId]) -> None:
        """Forget requests; a call that is in flight goes on for the others."""
        gone = set(ids)
        self._rejected = [output for output in self._rejected if output.id not in gone]
        self._waiting = [job for job in self._waiting if job.id not in gone]
        for id in gone:
            self._jobs.pop(id, None)

    def interrupt(self) -> None:
        """Make a waiting step return at once."""
        self._answers.interrupt()

    def close(self) -> None:
        """Forget everything; calls in flight end unheard. Idempotent."""
        self._closed = True
        self._jobs.clear()
        self._waiting.clear()
        self._halves.clear()

    def _texts(self, request: EngineRequest) -> tuple[str, ...]:
        if request.kind is not PrimitiveKind.EMBEDDING:
            raise _refusal("kind not executed here", request.kind, PrimitiveKind.EMBEDDING)
        if not isinstance(request.payload, TextBatch):
            raise _refusal("payload of a wrong type", type(request.payload).__name__, "TextBatch")
        if request.id in self._jobs:
            raise _refusal("id of unfinished work used again", request.id, "a fresh id")
        return request.payload.texts

    def _wait_s(self, most: float | None) -> float | None:
        """Return how long to wait for an answer before something else is due."""
        if not self._waiting or self._num_calls >= self._max_calls:
            return most
        gathering = max(0.0, self._gathers_until - self._clock.now())
        return gathering if most is None else min(most, gathering)

    def _start_due(self) -> None:
        while self._num_calls < self._max_calls:
            call = self._halves.pop() if self._halves else self._gathered()
            call = [job for job in call if self._jobs.get(job.id) is job]
            if call:
                self._start(call)
            elif not self._halves:
                return

    def _gathered(self) -> _Call:
        """Take what goes into the next call; nothing while others may still come."""
        call, count = list[_TextsToSend](), 0
        for job in self._waiting:
            if call and count + len(job.texts) > self._profile.max_batch:
                break
            call.append(job)
            count += len(job.texts)
        is_full = len(call) < len(self._waiting) or count >= self._profile.max_batch
        if not is_full and self._clock.now() < self._gathers_until:
            return []
        del self._waiting[: len(call)]
        return call

    def _start(self, call: _Call) -> None:
        self._num_calls += 1
        threading.Thread(
            target=self._ask, args=(call,), name="hosted-embedding", daemon=True
        ).start()

    def _ask(self, call: _Call) -> None:
        texts = [text for job in call for text in job.texts]
        try:
            answer: Sequence[Any] | Exception = self._embed(texts)
        except Exception as exc:
            answer = exc
        except BaseException as exc:  # its waiting callers have to hear of it
            answer = EngineError("the call was ended", where="HostedEmbeddingEngine", found=exc)
        self._answers.put([(call, answer)])

    def _outcome(self, call: _Call, answer: Sequence[Any] | Exception) -> list[EngineOutput]:
        if not isinstance(answer, Exception):
            try:
                return self._vectors(call, np.asarray(answer, dtype=np.float64))
            except Exception as exc:
                answer = exc
        if len(call) > 1 and self._is_inputs_fault(answer):
            middle = len(call) // 2
            self._halves += [call[middle:], call[:middle]]
            return []
        return [EngineOutput(job.id, "error", error=answer) for job in call if self._forget(job)]

    def _vectors(self, call: _Call, vectors: Any) -> list[EngineOutput]:
        count = sum(len(job.texts) for job in call)
        if vectors.ndim != 2 or len(vectors) != count:
            raise EngineOutputError(
                "a server returned vectors that cannot be right",
                where="HostedEmbeddingEngine",
                found=f"shape {vectors.shape} for {count} texts",
                valid="one vector per text, all of one dimension",
            )
        outputs, start = list[EngineOutput](), 0
        for job in call:
            stop = start + len(job.texts)
            if self._forget(job):
                outputs.append(EngineOutput(job.id, "final", vectors[start:stop]))
            start = stop
        return outputs

    def _forget(self, job: _TextsToSend) -> bool:
        """Forget work that has ended; False if it was cancelled before."""
        if self._jobs.get(job.id) is not job:
            return False
        del self._jobs[job.id]
        return True


def _is_inputs_fault(error: Exception) -> bool:
    status = getattr(error, "status_code", None)
    if status is not None:
        return status in _INPUT_STATUSES
    return isinstance(error, (ValueError, TypeError, EngineOutputError))


def _refusal(what: str, found: object, valid: str) -> EngineError:
    return EngineError(what, where="HostedEmbeddingEngine", found=found, valid=valid)
