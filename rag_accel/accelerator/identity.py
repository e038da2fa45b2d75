"""Say which request an intercepted call belongs to."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from rag_accel.scheduler.messages import RequestId

if TYPE_CHECKING:
    from rag_accel.accelerator.accelerator import Accelerator


@dataclass(frozen=True, slots=True, eq=False)
class RequestIdentity:
    """Travel with one run of an accelerated program, through config or context.

    Args:
        accelerator: schedules this run's leaves.
        request: the scheduler's id of the run.
        arrived_at: when it started, on the accelerator's clock, in seconds.
        deadline: when it must have ended, on the same clock, if ever.
        program: names the accelerated object.
    """

    accelerator: Accelerator
    request: RequestId
    arrived_at: float
    deadline: float | None = None
    program: str = ""
    _ordinals: count[int] = field(default_factory=lambda: count(1))
    _end: list[bool] = field(default_factory=list[bool])

    @property
    def has_ended(self) -> bool:
        """Tell whether the run is over; what it started beside itself may still go on."""
        return bool(self._end)

    def end(self) -> None:
        """Note that the run is over."""
        self._end.append(True)

    def next_leaf(self) -> str:
        """Return a name for the next leaf, unique within the run."""
        return f"leaf{next(self._ordinals)}"

    def __deepcopy__(self, memo: object) -> RequestIdentity:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        # A config that carries an identity may be pickled; what arrives elsewhere is no request
        # of that process.
        return (_nobody, ())


def _nobody() -> None:
    return None


#: The run whose code executes in this context. Set around plain and coroutine calls only: a
#: generator may be closed from another context, where a token cannot be reset.
current_request: ContextVar[RequestIdentity | None] = ContextVar("rag_accel_request", default=None)
