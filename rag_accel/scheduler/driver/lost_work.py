"""Work that engines never report on: its detection, and the errors that end it.

An engine that keeps work between steps is stepped as long as any of its work has not ended. If it
has dropped that work without a word, its steps return at once with nothing, again and again. That
is all that can be seen from outside; an engine that works or waits takes time, or reports.
"""

from __future__ import annotations

from typing import Final

from rag_accel.engine_api import EngineOutput, EngineRequest
from rag_accel.errors import EngineOutputError

#: as ``Engine.step`` promises
SILENT_STEPS: Final = 1000
SILENT_STEP_S: Final = 0.001


class Silence:
    """The consecutive steps of one engine without output or new work, and their duration."""

    __slots__ = ("_seconds", "_steps")

    def __init__(self) -> None:
        self._steps = 0
        self._seconds = 0.0

    def end(self) -> None:
        """Note a sign of life, or a reason to begin again."""
        self._steps, self._seconds = 0, 0.0

    def is_final(self, step_s: float) -> bool:
        """Count a step without any output; tell whether the engine has lost what it holds.

        The mean counts: that a step was held up by another thread says nothing.
        """
        self._steps += 1
        self._seconds += step_s
        if self._steps < SILENT_STEPS:
            return False
        is_over = self._seconds < SILENT_STEP_S * self._steps
        self.end()
        return is_over


def missing(request: EngineRequest) -> EngineOutput:
    """Return the end of work that an engine which keeps nothing did not report on."""
    error = EngineOutputError(
        "the engine ended a step without a result for this work",
        where=request.id,
        valid="one final or error output for every submitted id",
        hint="run the engine through rag_accel.testing.EngineContract",
    )
    return EngineOutput(request.id, "error", error=error)


def forgotten(request: EngineRequest) -> EngineOutput:
    """Return the end of work that an engine which keeps its work has lost."""
    error = EngineOutputError(
        "the engine has lost this work: it neither computes nor waits, and reports nothing",
        where=request.id,
        found=f"{SILENT_STEPS} steps in a row without any output, and without taking time",
        valid="a final or error output for every submitted id, or progress now and then",
        hint="run the engine through rag_accel.testing.EngineContract",
    )
    return EngineOutput(request.id, "error", error=error)
