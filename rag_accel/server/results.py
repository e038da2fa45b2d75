"""Say what a served request ended with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NewType

ServedId = NewType("ServedId", int)

RequestState = Literal["finished", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class ServedResult:
    """Hold what one request ended with.

    Args:
        id: what ``Server.add_request`` returned; ids rise in the order of the requests.
        program: name of the workflow it ran.
        state: ``finished`` with ``output``; ``failed`` with ``error``, also past its deadline;
            ``cancelled`` by ``Server.cancel``.
        latency_s: seconds from ``add_request`` to its end.
        output: the graph's result; None unless it has finished.
        error: what ended it, the original exception object; None if it has finished.
    """

    id: ServedId
    program: str
    state: RequestState
    latency_s: float
    output: Any = None
    error: BaseException | None = None

    def unwrap(self) -> Any:
        """Return the output; raise what ended the request if it has not finished."""
        if self.error is not None:
            raise self.error
        return self.output
