"""Scripts of the faults of a ``FakeEngine``."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from rag_accel.engine_api import EngineOutput, EngineRequest, GenerationOutput, ScoredDocument
from rag_accel.errors import EngineError, EngineLostError

ItemFault = Literal["raise", "error", "nan", "short", "silent"] | Exception
"""The fault of one item.

``raise``: the whole step raises. ``error``: it ends with an error output; an exception instance
does the same with exactly this exception. ``nan``: its numbers are NaN (a text stays as it is).
``short``: its result lacks the last vector, document or letter. ``silent``: it never reports.
"""


def no_fault(request: EngineRequest) -> ItemFault | None:
    """Let every item succeed."""
    return None


@dataclass(frozen=True, slots=True)
class Faults:
    """A script of faults.

    Args:
        item: returns the fault of a piece of work, if any.
        submit_error: raised by every ``submit``.
        every_nth_step: each n-th step with work raises, and its members are forgotten.
        dies_at_step: from this step with work on (1 is the first), every ``step`` with work and
            every ``submit`` raises ``EngineLostError``.
        hang: steps with work wait until this is set. An engine with an ``interruptible`` profile
            returns from such a step, having done nothing, when it is interrupted.
    """

    item: Callable[[EngineRequest], ItemFault | None] = no_fault
    submit_error: Exception | None = None
    every_nth_step: int | None = None
    dies_at_step: int | None = None
    hang: threading.Event | None = None

    def is_dead(self, step: int) -> bool:
        """Tell whether the engine is dead in its ``step``-th step with work."""
        return self.dies_at_step is not None and step >= self.dies_at_step

    def raise_in_step(self, step: int, work: list[EngineRequest]) -> None:
        """Raise if the ``step``-th step with work is to fail as a whole."""
        if self.is_dead(step):
            raise lost()
        if self.every_nth_step is not None and step % self.every_nth_step == 0:
            raise EngineError("a scripted fault in a step", where=f"step {step}")
        for request in work:
            if self.item(request) == "raise":
                raise EngineError("a scripted fault in a step", where=str(request.id))

    def spoil(self, request: EngineRequest, final: EngineOutput) -> EngineOutput | None:
        """Return the output to report in place of ``final``; None reports nothing."""
        fault = self.item(request)
        if fault == "silent":
            return None
        if fault == "nan":
            return replace(final, value=with_nan(final.value))
        if fault == "short":
            return replace(final, value=without_last(final.value))
        if fault == "error":
            fault = EngineError("a scripted fault in an item", where=str(request.id))
        if isinstance(fault, Exception):
            return EngineOutput(request.id, "error", error=fault)
        return final


def lost() -> EngineLostError:
    """Return the error of an engine that has died."""
    return EngineLostError("a scripted death", where="FakeEngine", hint="make a new engine")


def with_nan(value: Any) -> Any:
    """Return a copy of a result in which every number that can be is NaN."""
    if isinstance(value, np.ndarray):
        return np.full_like(value, np.nan)
    if isinstance(value, tuple):
        return tuple(with_nan(item) for item in value)
    if isinstance(value, ScoredDocument):
        return replace(value, score=float("nan"))
    return value if isinstance(value, GenerationOutput) else float("nan")


def without_last(value: Any) -> Any:
    """Return a copy of a result that is one vector, document or letter too short."""
    if isinstance(value, GenerationOutput):
        return replace(value, text=value.text[:-1])
    return value[:-1]
