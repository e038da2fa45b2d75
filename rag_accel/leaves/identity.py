"""The request that an intercepted call belongs to."""

from __future__ import annotations

from contextvars import ContextVar
from itertools import count
from typing import TYPE_CHECKING

from rag_accel.scheduler.messages import RequestId

if TYPE_CHECKING:
    from rag_accel.accelerator.accelerator import Accelerator


class RequestIdentity:
    """The identity of one run of an accelerated program, carried by its contexts.

    Args:
        accelerator: schedules this run's leaves.
        request: the scheduler's id of the run.
        arrived_at: when it started, on the accelerator's clock, in seconds.
        deadline: when it must have ended, on the same clock, if ever.
        program: names the accelerated object.
    """

    __slots__ = (
        "_ordinals",
        "accelerator",
        "arrived_at",
        "deadline",
        "has_ended",
        "program",
        "request",
    )

    def __init__(
        self,
        accelerator: Accelerator,
        request: RequestId,
        arrived_at: float,
        deadline: float | None = None,
        program: str = "",
    ) -> None:
        self.accelerator = accelerator
        self.request = request
        self.arrived_at = arrived_at
        self.deadline = deadline
        self.program = program
        self._ordinals = count(1)
        #: whether the run is over; what it started beside itself may still go on
        self.has_ended = False

    def end(self) -> None:
        """Note that the run is over."""
        self.has_ended = True

    def next_leaf(self) -> str:
        """Return a name for the next leaf, unique within the run."""
        return f"leaf{next(self._ordinals)}"

    def __deepcopy__(self, memo: object) -> RequestIdentity:
        return self


#: The run whose code executes in this context. Set around plain and coroutine calls only: a
#: generator may be closed from another context, where a token cannot be reset.
current_request: ContextVar[RequestIdentity | None] = ContextVar("rag_accel_request", default=None)
