"""Script the faults with which a loopback server answers instead of working."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FaultKind = Literal["status", "drop", "truncate", "malformed", "slow"]


@dataclass(frozen=True, slots=True)
class Fault:
    """Describe how one chat completion goes wrong.

    Args:
        kind: ``status`` answers with an error status; ``drop`` breaks the connection before the
            first byte; ``truncate`` breaks it in the middle of the answer; ``malformed`` sends
            broken JSON; ``slow`` waits before the first byte and then answers properly.
        status: HTTP status of a ``status`` fault.
        retry_after: value of its ``Retry-After`` header.
        message: error message in its body.
        delay_s: how long a ``slow`` fault waits.
        after_deltas: text events a stream sends before it is truncated or malformed.
    """

    kind: FaultKind
    status: int = 500
    retry_after: str | None = None
    message: str = "scripted fault"
    delay_s: float = 0.0
    after_deltas: int = 0
