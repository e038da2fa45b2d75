"""Embedding on servers: small requests of several callers share a call, and no call waits."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from rag_accel.clock import Clock, MonotonicClock
from rag_accel.engine_api import (
    EngineOutput,
    EngineRequest,
    PrimitiveKind,
    TextBatch,
    WorkId,
)
from rag_accel.engine_api.transient import is_refusal
from rag_accel.engines.embedding.call_costs import CallCosts
from rag_accel.engines.embedding.hosted_texts import CallReport
from rag_accel.engines.http.retry_after import retry_delay_s
from rag_accel.engines.outbox import Outbox
from rag_accel.engines.shared_calls import SharedCallsEngine
from rag_accel.errors import EngineError, EngineOutputError
from rag_accel.telemetry.shared_spans import CallersSpan, run_apart


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """The answer to one call.

    Args:
        vectors: one per text, in order.
        model: that the server says has answered; empty if it says none.
    """

    vectors: Sequence[Any]
    model: str = ""


#: Asks a server once, without trying again.
AskServer = Callable[[list[str]], ServerAnswer]

#: A request above one of these is a load: its caller asks alone, and no query waits for it.
MAX_REQUEST_TEXTS = 16
MAX_REQUEST_CHARS = 8192
#: Of one call: what servers accept by default, and below OpenAI's 300,000 tokens in any script.
MAX_CALL_TEXTS = 32
MAX_CALL_CHARS = 65536

#: How often a request that comes late may prolong the gathering of a call.
_MOST_GATHERINGS = 4


@dataclass(frozen=True, slots=True)
class ServerTexts(TextBatch):
    """Texts, and the server that embeds them.

    Args:
        group: requests of equal groups may share a call: nothing in it differs between them.
        ask: asks the server.
        max_texts: texts in one call.
        attempts: that a call which is refused may make; more than one where ``ask`` waits for its
            turn.
        costs: what calls of the group take.
        note: takes what an answered call took.
        caller: the span in which the caller asks.
    """

    group: Hashable = field(kw_only=True)
    ask: AskServer = field(kw_only=True, repr=False, compare=False)
    max_texts: int = field(default=MAX_CALL_TEXTS, kw_only=True)
    attempts: int = field(default=1, kw_only=True, compare=False)
    costs: CallCosts = field(default_factory=CallCosts, kw_only=True, repr=False, compare=False)
    note: Callable[[CallReport], None] = field(
        default=lambda report: None, kw_only=True, repr=False, compare=False
    )
    caller: CallersSpan | None = field(default=None, kw_only=True, repr=False, compare=False)


class AskAloneError(EngineError):
    """A shared call failed, so its caller asks for its own texts itself.

    It holds nothing of the failure but the time to wait: the error of a shared call, its request,
    its response and the frames of its traceback hold the texts of all callers.

    Args:
        delay_s: seconds to wait before, as a client does before it tries again.
        attempts: that the shared call has made of those which each caller has.
    """

    def __init__(self, delay_s: float, attempts: int = 1) -> None:
        super().__init__(
            "a call that several callers shared failed; each asks again for itself",
            where="HostedEmbeddingEngine",
        )
        self.delay_s, self.attempts = delay_s, attempts


def is_small(texts: Sequence[str]) -> bool:
    """Tell whether a request may share a call; an empty text, which servers refuse, may not."""
    return (
        0 < len(texts) <= MAX_REQUEST_TEXTS
        and all(texts)
        and sum(map(len, texts)) <= MAX_REQUEST_CHARS
    )


@dataclass(slots=True, eq=False)
class _TextsToSend:
    id: WorkId
    work: ServerTexts
    group: Hashable

    @property
    def num_chars(self) -> int:
        return sum(map(len, self.work.texts))


_Call = list[_TextsToSend]


class _Failure(NamedTuple):
    """The failure of a call, without anything of its texts."""

    delay_s: float
    attempts: int


#: a call, and its vectors
_Answer = tuple[_Call, Sequence[Any] | _Failure]


class HostedEmbeddingEngine(SharedCallsEngine[_Answer]):
    """An embedding engine for servers, one for all of them.

    Requests of one group that come within ``gather_s`` of one another go into one call; queries
    share calls with queries, documents with documents. A call starts when it is full, when no other
    request has come for that time, or four times that after its first, whatever else is in flight:
    a request never waits for the answer to another. How many texts fill a call, and whether waiting
    for them pays, is learned from what calls took.

    A call runs in a context of its own, in a span that links to those of its callers. After any
    failure of it, each of its requests ends with an ``AskAloneError``.

    Values are ``[len(texts), dim]``, float64: the numbers as the server sent them.

    Args:
        gather_s: seconds that the last request waits for others.
        clock: measures the gathering.
    """

    def __init__(self, *, gather_s: float = 0.003, clock: Clock | None = None) -> None:
        self._gather_s = gather_s
        self._clock = clock or MonotonicClock()
        super().__init__(PrimitiveKind.EMBEDDING, "HostedEmbeddingEngine")
        #: by group what is not sent yet, and until when it waits for others
        self._waiting: dict[Hashable, _Call] = {}
        self._gathers_until: dict[Hashable, float] = {}
        self._latest: dict[Hashable, float] = {}

    def _clear(self) -> None:
        self._waiting.clear()
        self._gathers_until.clear()
        self._latest.clear()

    def _job(self, request: EngineRequest) -> _TextsToSend:
        work = self._checked_payload(request, ServerTexts, self._jobs)
        group = (request.namespace, work.role, work.group)
        hash(group)  # one that cannot be hashed fails here
        return _TextsToSend(request.id, work, group)

    def _start(self, jobs: Sequence[_TextsToSend]) -> None:
        now = self._clock.now()
        for job in jobs:
            waiting = self._waiting.setdefault(job.group, [])
            if not waiting:
                most_s = _MOST_GATHERINGS * self._gather_s
                self._latest[job.group] = now + job.work.costs.wait_s(most_s)
            self._gathers_until[job.group] = min(now + self._gather_s, self._latest[job.group])
            waiting.append(job)

    def _abort(self, jobs: Sequence[_TextsToSend]) -> None:
        """Take requests out of what waits; a call that is in flight goes on for the others."""
        for group, waiting in list(self._waiting.items()):
            self._keep(group, [job for job in waiting if job.id in self._jobs])

    def _wait_s(self, most: float | None) -> float | None:
        """Return the seconds to wait for an answer before a call is due."""
        if not self._gathers_until:
            return most
        gathering = max(0.0, min(self._gathers_until.values()) - self._clock.now())
        return gathering if most is None else min(most, gathering)

    def _send_due(self) -> None:
        now = self._clock.now()
        for group in list(self._waiting):
            while call := self._gathered(group, now):
                self._send(call)

    def _gathered(self, group: Hashable, now: float) -> _Call:
        """Take the requests of the group's next call; none while others may still come."""
        waiting = self._waiting.get(group, [])
        if not waiting:
            return []
        most = _most_texts(waiting)
        call, num_texts, num_chars = list[_TextsToSend](), 0, 0
        for job in waiting:
            num_texts += len(job.work.texts)
            num_chars += job.num_chars
            if call and (num_texts > most or num_chars > MAX_CALL_CHARS):
                break
            call.append(job)
        is_full = len(call) < len(waiting) or num_texts >= most
        if not is_full and now < self._gathers_until[group]:
            return []
        self._keep(group, waiting[len(call) :])
        return call

    def _keep(self, group: Hashable, waiting: _Call) -> None:
        if waiting:
            self._waiting[group] = waiting
        else:
            self._waiting.pop(group, None)
            self._gathers_until.pop(group, None)
            self._latest.pop(group, None)

    def _send(self, call: _Call) -> None:
        self._run(_ask, call, self._outbox)

    def _outputs_of(self, report: _Answer) -> list[EngineOutput]:
        call, answer = report
        if isinstance(answer, _Failure):
            return [
                EngineOutput(job.id, "error", error=AskAloneError(answer.delay_s, answer.attempts))
                for job in call
                if self._forget(job)
            ]
        outputs, start = list[EngineOutput](), 0
        for job in call:
            stop = start + len(job.work.texts)
            if self._forget(job):
                outputs.append(EngineOutput(job.id, "final", answer[start:stop]))
            start = stop
        return outputs


def _most_texts(waiting: _Call) -> int:
    """Return how many texts the next call of what waits may hold."""
    first = waiting[0].work
    return min(MAX_CALL_TEXTS, first.max_texts, first.costs.texts_a_call or MAX_CALL_TEXTS)


def _ask(call: _Call, answers: Outbox[_Answer]) -> None:
    """Ask a server for a call; of an error nothing but the time to wait leaves this thread."""
    attempts = 0
    while True:
        attempts += 1
        try:
            answers.put([(call, _vectors(call))])
        except BaseException as exc:  # the waiting callers have to hear of it
            if attempts < call[0].work.attempts and is_refusal(exc):
                continue
            delay_s = 0.0
            with contextlib.suppress(Exception):  # of any class, whatever it calls headers
                delay_s = retry_delay_s(exc)
            answers.put([(call, _Failure(delay_s, attempts))])
        return


def _vectors(call: _Call) -> Any:
    texts = [text for job in call for text in job.work.texts]
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    first = call[0].work
    began = time.perf_counter(), time.thread_time(), time.process_time()
    callers = [job.work.caller for job in call]
    answer = run_apart(partial(first.ask, list(places)), "rag_accel.shared_embeddings", callers)
    vectors = np.asarray(answer.vectors, dtype=np.float64)
    if vectors.ndim != 2 or len(vectors) != len(places):
        raise EngineOutputError(
            "a server returned vectors that cannot be right",
            where="HostedEmbeddingEngine",
            found=f"shape {vectors.shape} for {len(places)} texts",
            valid="one vector per text, all of one dimension",
        )
    first.note(_report(len(places), answer.model, *began))
    return vectors if len(places) == len(texts) else vectors[[places[text] for text in texts]]


def _report(texts: int, model: str, began: float, busy: float, all_busy: float) -> CallReport:
    """Return what a call took, without what other threads of this process took from it."""
    sending_s = time.thread_time() - busy
    others_s = max(0.0, time.process_time() - all_busy - sending_s)
    took_s = max(sending_s, time.perf_counter() - began - others_s)
    return CallReport(texts, took_s, sending_s, model)
