"""The request that an intercepted call belongs to."""

from __future__ import annotations

from asyncio import AbstractEventLoop, _get_running_loop
from collections.abc import Callable
from contextvars import ContextVar
from itertools import count
from typing import TYPE_CHECKING
from weakref import ref

from rag_accel.engines.http.endpoint_limit import Urgency
from rag_accel.leaves.retrieved_documents import RetrievedDocuments
from rag_accel.scheduler.messages import RequestId
from rag_accel.system.forks import forks
from rag_accel.system.locks import RenewedLock
from rag_accel.telemetry.spans import RequestSpans

if TYPE_CHECKING:
    from rag_accel.accelerator.accelerator import Accelerator
    from rag_accel.leaves.early_beginnings import RunBeginnings
    from rag_accel.leaves.recorded_prompts import Values
    from rag_accel.scheduler.driver import BegunCall


#: held while runs count their streams; reentrant, as a collected stream ends, too
_streams = RenewedLock()


class RequestIdentity:
    """The identity of one run of an accelerated program, carried by its contexts.

    Args:
        accelerator: schedules this run's leaves.
        request: the scheduler's id of the run.
        arrived_at: when it started, on the accelerator's clock, in seconds.
        deadline: when it must have ended, on the same clock, if ever.
        program: names the accelerated object.
        urgency: its place where calls wait for their turn at an endpoint.
    """

    __slots__ = (
        "_is_closing",
        "_is_quiet",
        "_loop",
        "_num_streams",
        "_seen",
        "accelerator",
        "arrived_at",
        "beginnings",
        "deadline",
        "forks",
        "given",
        "has_ended",
        "last_call",
        "ordinals",
        "program",
        "request",
        "spans",
        "urgency",
    )

    def __init__(
        self,
        accelerator: Accelerator,
        request: RequestId,
        arrived_at: float,
        deadline: float | None = None,
        program: str = "",
        urgency: Urgency = Urgency.ORDINARY,
    ) -> None:
        self.accelerator = accelerator
        self.request = request
        self.arrived_at = arrived_at
        self.deadline = deadline
        self.program = program
        self.urgency = urgency
        #: numbers of its leaves, whose names are ``next_leaf``'s
        self.ordinals = count(1)
        #: equal to that of now in the process that it was made in
        self.forks = forks.number
        #: reads what the program was given
        self.given: Callable[[], Values] = dict
        #: its prompts, once one of them can be begun early
        self.beginnings: RunBeginnings | None = None
        #: whether the run is over; what it started beside itself may still go on
        self.has_ended = False
        #: the spans around it and its leaves, if they are exported
        self.spans: RequestSpans | None = None
        #: its last call that need not wait
        self.last_call: BegunCall | None = None
        #: whether the scheduler's core does not know of it yet
        self._is_quiet = False
        loop = _get_running_loop()
        self._loop = None if loop is None else ref(loop)
        self._num_streams = 0
        self._is_closing = False
        self._seen: RetrievedDocuments | None = None

    @property
    def loop(self) -> AbstractEventLoop | None:
        """Return the event loop that ran in the thread where this run began, if it is there."""
        return None if self._loop is None else self._loop()

    @property
    def retrieved(self) -> RetrievedDocuments:
        """Return the documents that the run's searches have found."""
        if self._seen is None:
            with _streams.lock:
                self._seen = self._seen or RetrievedDocuments()
        return self._seen

    def begin_stream(self) -> None:
        """Note that a stream of this run began, which the run outlives."""
        with _streams.lock:
            self._num_streams += 1

    def end_stream(self) -> None:
        """Note that a stream is over, and close the run if that was what it waited for."""
        with _streams.lock:
            self._num_streams -= 1
            is_due = self._is_closing and self._num_streams == 0
        if is_due:
            self._close()

    def close(self) -> None:
        """End the run now, or with the last of its streams."""
        with _streams.lock:
            self._is_closing = True
            is_due = self._num_streams == 0
        if is_due:
            self._close()

    def _close(self) -> None:
        if forks.number == self.forks:
            self.accelerator.close_request(self)

    def begin_quietly(self) -> None:
        """Note that it is opened by ``open`` only."""
        self._is_quiet = True

    def open(self) -> None:
        """See to it that the scheduler knows of this run, before a leaf that it decides about."""
        if not self._is_quiet:
            return
        with _streams.lock:
            if self._is_quiet:
                self.accelerator.open_late(self)
                self._is_quiet = False

    def end(self) -> bool:
        """Note that the run is over; tell whether it was never opened."""
        with _streams.lock:
            self.has_ended = True
            was_quiet, self._is_quiet = self._is_quiet, False
        return was_quiet

    def next_leaf(self) -> str:
        """Return a name for the next leaf, unique within the run."""
        return f"leaf{next(self.ordinals)}"

    def __deepcopy__(self, memo: object) -> RequestIdentity:
        return self


#: The run whose code executes in this context. Set around plain and coroutine calls only: a
#: generator may be closed from another context, where a token cannot be reset.
current_request: ContextVar[RequestIdentity | None] = ContextVar("rag_accel_request", default=None)

#: Tells the longest remaining path of whatever calls a leaf in this context, in steps; None where
#: it does not know. Set by whoever knows the shape of the program that runs.
leaf_depth: ContextVar[Callable[[], int | None] | None] = ContextVar(
    "rag_accel_leaf_depth", default=None
)

#: Of a leaf whose place in its program is unknown.
UNKNOWN_DEPTH = 1


def current_depth() -> int:
    """Return the longest remaining path of a leaf called in this context, in steps."""
    tell = leaf_depth.get()
    depth = tell() if tell is not None else None
    return UNKNOWN_DEPTH if depth is None else depth
